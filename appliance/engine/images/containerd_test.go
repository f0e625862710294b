package images

import "testing"

func TestAListThatLacksAnImageIsNotKept(t *testing.T) {
	list := []Image{{Name: "rivulet.dev/demo-web:1"}, {Name: "docker.io/library/busybox:1"}}
	for _, c := range []struct {
		names []string
		kept  bool
	}{
		{nil, true},
		{[]string{"rivulet.dev/demo-web:1", "rivulet.dev/demo-web@sha256:abc"}, true},
		{[]string{"rivulet.dev/demo-web:2"}, false},
	} {
		if err := allListed(c.names, list); (err == nil) != c.kept {
			t.Errorf("%q: %v", c.names, err)
		}
	}
}
