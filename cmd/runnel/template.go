package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/runnelmq/runnel/client"
)

// A template is what `consume --print` was told, taken apart.
type template struct {
	pieces []piece
	// null stands for an absent key or value.
	null string
}

// A piece is literal text, or the field that verb names.
type piece struct {
	text string
	verb byte
}

const templateHelp = "%t topic, %p partition, %o offset, %T time, %k key, %v value, %h headers, %% a percent sign, and the escapes \\t \\n"

func parseTemplate(format, null string) (template, error) {
	t := template{null: null}
	format, err := unescape(format)
	if err != nil {
		return t, err
	}
	literal := ""
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			literal += format[i : i+1]
			continue
		}
		i++
		switch {
		case i == len(format):
			return t, fmt.Errorf("%q ends with a lone %%: there is %s", format, templateHelp)
		case format[i] == '%':
			literal += "%"
			continue
		}
		switch verb := format[i]; verb {
		case 't', 'p', 'o', 'T', 'k', 'v', 'h':
			if literal != "" {
				t.pieces = append(t.pieces, piece{text: literal})
				literal = ""
			}
			t.pieces = append(t.pieces, piece{verb: verb})
		default:
			return t, fmt.Errorf("%q has %%%c: there is %s", format, verb, templateHelp)
		}
	}
	if literal != "" {
		t.pieces = append(t.pieces, piece{text: literal})
	}
	return t, nil
}

// append appends r as the template says, and the end of the line.
func (t *template) append(b []byte, r *client.Record) []byte {
	for i := range t.pieces {
		switch p := &t.pieces[i]; p.verb {
		case 't':
			b = append(b, r.Topic...)
		case 'p':
			b = strconv.AppendInt(b, int64(r.Partition), 10)
		case 'o':
			b = strconv.AppendInt(b, r.Offset, 10)
		case 'T':
			b = r.Timestamp.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z07:00")
		case 'k':
			b = t.bytes(b, r.Key)
		case 'v':
			b = t.bytes(b, r.Value)
		case 'h':
			for j, h := range r.Headers {
				if j > 0 {
					b = append(b, ',')
				}
				b = append(append(b, h.Key...), '=')
				b = t.bytes(b, h.Value)
			}
		default:
			b = append(b, p.text...)
		}
	}
	return append(b, '\n')
}

func (t *template) bytes(b, v []byte) []byte {
	if v == nil {
		return append(b, t.null...)
	}
	return append(b, v...)
}

// recordView is a record in JSON. What is not UTF-8 has the …_base64 field
// instead; an absent key or value is null.
type recordView struct {
	Topic       string       `json:"topic"`
	Partition   int32        `json:"partition"`
	Offset      int64        `json:"offset"`
	Timestamp   string       `json:"timestamp"`
	Key         *string      `json:"key"`
	KeyBase64   []byte       `json:"key_base64,omitempty"`
	Value       *string      `json:"value"`
	ValueBase64 []byte       `json:"value_base64,omitempty"`
	Headers     []headerView `json:"headers,omitempty"`
}

type headerView struct {
	Key         string  `json:"key"`
	Value       *string `json:"value"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
}

func view(r *client.Record) recordView {
	v := recordView{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: stamp(r.Timestamp)}
	v.Key, v.KeyBase64 = textOrBytes(r.Key)
	v.Value, v.ValueBase64 = textOrBytes(r.Value)
	for _, h := range r.Headers {
		hv := headerView{Key: h.Key}
		hv.Value, hv.ValueBase64 = textOrBytes(h.Value)
		v.Headers = append(v.Headers, hv)
	}
	return v
}

func textOrBytes(b []byte) (*string, []byte) {
	switch {
	case b == nil:
		return nil, nil
	case utf8.Valid(b):
		s := string(b)
		return &s, nil
	default:
		return nil, b
	}
}

// appendJSON appends r as one line of JSON.
func appendJSON(b []byte, r *client.Record) ([]byte, error) {
	line, err := json.Marshal(view(r))
	if err != nil {
		return b, err
	}
	return append(append(b, line...), '\n'), nil
}
