package network

import (
	"net/http"

	"rivulet/fabric"
	"rivulet/offload/nodeagent/images"
)

// Home finds the home of a consumer by its tag in the names of images; none while on says
// that it is not wanted. running is nil before the fabric has started.
func Home(running func() *fabric.Fabric, on func() bool) func(tag string) (*http.Client, string, bool) {
	return func(tag string) (*http.Client, string, bool) {
		f := running()
		if f == nil || !on() {
			return nil, "", false
		}
		for _, l := range f.Links() {
			if images.Tag(string(l.ID)) != tag {
				continue
			}
			client, base, err := f.Client(l.ID)
			return client, base, err == nil
		}
		return nil, "", false
	}
}
