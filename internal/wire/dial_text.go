package wire

import "strings"

// NoGRPC is what may be wrong with a port that takes connections, and nothing more.
const NoGRPC = "is it a port with TLS, or of something else, or does its process hang?"

// DialText takes gRPC's wrapping off its text about a connection that could not be opened. Other texts stay as they are.
func DialText(s string) string {
	if strings.Contains(s, "error reading server preface") && !strings.Contains(s, "tls: ") {
		return "the connection was taken, and nobody answered on it as gRPC does: " + NoGRPC
	}
	for _, cut := range []string{"last connection error: ", "connection error: desc = ", "transport: ", "error while dialing: ", "Error while dialing: "} {
		if _, after, ok := strings.Cut(s, cut); ok {
			s = strings.Trim(after, `"`)
		}
	}
	return strings.TrimSuffix(s, `"`)
}
