package main

import (
	"fmt"
	"strconv"
	"strings"
)

// unescape reads the escapes \t, \n, \r, \0, \\ and \xHH, so that they can be
// typed where a shell passes them on as they are.
func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			return "", fmt.Errorf(`%q ends within an escape: write \\ for a backslash`, s)
		}
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case '0':
			b.WriteByte(0)
		case '\\':
			b.WriteByte('\\')
		case 'x':
			if i+2 >= len(s) {
				return "", fmt.Errorf(`%q: \x needs two hexadecimal digits`, s)
			}
			n, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
			if err != nil {
				return "", fmt.Errorf(`%q: \x needs two hexadecimal digits`, s)
			}
			b.WriteByte(byte(n))
			i += 2
		default:
			return "", fmt.Errorf(`%q: \%c is no escape: there are \t, \n, \r, \0, \\ and \xHH`, s, s[i])
		}
	}
	return b.String(), nil
}
