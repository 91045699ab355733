package infer

import "testing"

func TestParseClientKey(t *testing.T) {
	for text, want := range map[string]ClientKey{
		"": "", "off": "", " OFF ": "", "client_ip": ByAddress, "Client_IP": ByAddress, "token": ByToken, "header:X-Tenant": "header:X-Tenant", "Header: x-user ": "header:x-user",
	} {
		if got, ok := ParseClientKey(text); !ok || got != want {
			t.Errorf("%q: %q %v, want %q", text, got, ok, want)
		}
	}
	for _, text := range []string{"ip", "header", "header:", "header: ", "header:a b", "header:a:b", "client_ip,token"} {
		if got, ok := ParseClientKey(text); ok {
			t.Errorf("%q is taken for %q", text, got)
		}
	}
}

func TestClientOfARequest(t *testing.T) {
	item := &Item{Peer: "10.0.0.1", Header: []Field{{Name: "authorization", Value: "Bearer a"}, {Name: "X-TENANT", Value: "t1"}, {Name: "x-tenant", Value: "t2"}}}
	for key, want := range map[ClientKey]string{
		"": "", ByAddress: "client_ip=10.0.0.1", ByToken: "token=Bearer a", "header:x-tenant": "header:x-tenant=t1", "header:absent": "header:absent=",
	} {
		if got := key.Of(item); got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
}
