package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// printJSON prints v as one indented JSON value.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table prints rows of columns, the first row in capitals as a heading.
func table(w io.Writer, heading string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, strings.ToUpper(strings.ReplaceAll(heading, " ", "\t")))
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush()
}

// known writes a number of which a negative value means that it is not known.
func known[N ~int32 | ~int64](n N) string {
	if n < 0 {
		return "-"
	}
	return fmt.Sprint(int64(n))
}

// bytesText writes a number of bytes for people.
func bytesText(n int64) string {
	if n < 0 {
		return "-"
	}
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

func ids(ns []int32) string {
	if len(ns) == 0 {
		return "-"
	}
	s := make([]string, len(ns))
	for i, n := range ns {
		s[i] = fmt.Sprint(n)
	}
	return strings.Join(s, ",")
}

// stamp writes a time as it is stored: in UTC, to the millisecond.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// never returns an empty list instead of none, which JSON would show as null.
func never[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
