package rewrite

import (
	"fmt"
	"net/http"

	"rivulet/offload/homeapi"
)

// HomeAPINamespace and HomeAPIName are of the Service at home for its API server. The gateway's Service for it in the
// shared namespace is the way there of each home namespace.
const HomeAPINamespace, HomeAPIName = "default", "kubernetes"

// wayHome presents the one Service for home's API server as if it were in the home namespace. It is the only visible
// Service.
func (c *call) wayHome(prefix string) (*http.Response, error) {
	u := *c.URL
	u.Path, u.RawPath = prefix+"/api/v1/namespaces/"+c.shared+"/services/"+c.names.Away(HomeAPINamespace, HomeAPIName), ""
	c.URL = &u
	o, resp, err := c.read(c.Request)
	if o == nil {
		return resp, err
	}
	meta := need(o, "metadata")
	if text(at(o, "metadata", "labels"), HomeLabel) != c.names.Cluster {
		return refuse(c.Request, http.StatusNotFound, "NotFound", fmt.Sprintf("the way to home's API server, Service %s, is not ours", text(meta, "name"))), nil
	}
	meta["namespace"], meta["name"] = c.home, homeapi.Service
	return answer(resp, o)
}
