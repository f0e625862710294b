package apiproxy

import (
	"net/http"
	"strings"
	"testing"
)

func TestImpersonate(t *testing.T) {
	h := http.Header{
		"Impersonate-User":       {"system:admin"},
		"impersonate-uid":        {"0"}, // not canonical on purpose
		"Impersonate-Group":      {"system:masters"},
		"Impersonate-Extra-Role": {"x"},
		"X-Remote-User":          {"root"},
		"Authorization":          {"Bearer stolen"},
		"Cookie":                 {"a=b"},
		"Accept":                 {"application/json"},
		"Sec-Websocket-Protocol": {"v5.channel.k8s.io, " + bearer + "c3RvbGVu"},
	}
	Impersonate(h, As{User: "rivulet:peer:alice", Group: "rivulet:peers"})
	want := http.Header{
		"Impersonate-User":       {"rivulet:peer:alice"},
		"Impersonate-Group":      {"rivulet:peers", "system:authenticated"},
		"Accept":                 {"application/json"},
		"Sec-Websocket-Protocol": {"v5.channel.k8s.io"},
	}
	for key := range h {
		if strings.Join(h[key], "|") != strings.Join(want[key], "|") {
			t.Errorf("%s = %q, want %q", key, h[key], want[key])
		}
	}
	if len(h) != len(want) {
		t.Errorf("headers %v, want %v", h, want)
	}
}
