package host

import "strings"

// handshakeFields is the least number of fields that go-plugin's handshake line has.
const handshakeFields = 4

// isHandshake tells a handshake line, of whatever version, from anything else.
func isHandshake(line string) bool {
	fields := strings.Split(line, "|")
	return len(fields) >= handshakeFields && fields[0] != "" && strings.Trim(fields[0], "0123456789") == ""
}
