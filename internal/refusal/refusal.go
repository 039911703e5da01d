// Package refusal is the error of a request that is not done: a kind to test
// for, a text for people, and facts for programs.
package refusal

import "fmt"

// An Error refuses something. errors.Is finds its kind, rpcerr its facts.
type Error struct {
	Kind  error             // a sentinel of the package that refuses
	Text  string            // what is wrong, and what to do
	Facts map[string]string // by lowerCamelCase name; nil: none
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// Metadata implements rpcerr.Metadata.
func (e *Error) Metadata() map[string]string { return e.Facts }

// New returns an Error of that kind whose text is formatted.
func New(kind error, facts map[string]string, format string, args ...any) error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...), Facts: facts}
}
