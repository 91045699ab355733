package infer

import "strings"

// Fairness says how the clients of a model share its queue. The zero value is one queue for everybody.
type Fairness struct {
	Key      ClientKey
	MaxShare float64 // part of the queue that one client may have while others want it, above 0; 1 for all of it
}

// ClientKey says by what clients are told apart: "" (they are not), client_ip, token, or header: and a header's name.
type ClientKey string

// The keys that are no header.
const (
	ByAddress ClientKey = "client_ip" // the address that the request came from
	ByToken   ClientKey = "token"     // the header Authorization
)

const byHeader = "header:"

// ParseClientKey reads a key as it is written in settings; "off" and "" mean that clients are not told apart.
func ParseClientKey(text string) (ClientKey, bool) {
	text = strings.TrimSpace(text)
	switch k := ClientKey(strings.ToLower(text)); k {
	case "", "off":
		return "", true
	case ByAddress, ByToken:
		return k, true
	}
	if len(text) <= len(byHeader) || !strings.EqualFold(text[:len(byHeader)], byHeader) {
		return "", false
	}
	name := strings.TrimSpace(text[len(byHeader):])
	if name == "" || strings.ContainsAny(name, " \t:,;\"()") {
		return "", false
	}
	return ClientKey(byHeader + name), true
}

// Of gives who a request counts for, "" where clients are not told apart. Requests without what the key is about are those of one client.
func (k ClientKey) Of(item *Item) string {
	switch k {
	case "":
		return ""
	case ByAddress:
		return string(k) + "=" + item.Peer
	case ByToken:
		return string(k) + "=" + headerOf(item.Header, "authorization")
	}
	return string(k) + "=" + headerOf(item.Header, string(k[len(byHeader):]))
}

func headerOf(fields []Field, name string) string {
	for i := range fields {
		if len(fields[i].Name) == len(name) && strings.EqualFold(fields[i].Name, name) {
			return fields[i].Value
		}
	}
	return ""
}
