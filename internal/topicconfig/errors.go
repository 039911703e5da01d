package topicconfig

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalid is what every error of this package is.
var ErrInvalid = errors.New("invalid topic configuration")

// An Error says what is wrong with one key.
type Error struct {
	Key   string
	Value string
	Want  string // the values the key takes, in words
	// Unknown is true when there is no such key; Want then says what might have been meant.
	Unknown bool
}

func (e *Error) Error() string {
	if e.Unknown {
		return fmt.Sprintf("unknown configuration key %.100q: want %s", e.Key, e.Want)
	}
	return fmt.Sprintf("%s=%.100q: want %s", e.Key, e.Value, e.Want)
}

// Is makes every Error an ErrInvalid.
func (e *Error) Is(target error) bool { return target == ErrInvalid }

// Metadata returns the facts for the caller: key, value, want.
func (e *Error) Metadata() map[string]string {
	return map[string]string{"key": cut(e.Key), "value": cut(e.Value), "want": e.Want}
}

// Errors is one or more complaints about one configuration, in the order of keys.
type Errors []*Error

func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the complaints one by one.
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, one := range e {
		errs[i] = one
	}
	return errs
}

// Metadata returns the facts of the first complaint.
func (e Errors) Metadata() map[string]string { return e[0].Metadata() }

// cut bounds what is repeated of a caller's input.
func cut(s string) string { return s[:min(len(s), 256)] }
