// Package operate is what an operator does with a cluster beyond one call of the supervisor's API: it finds what ends
// with a peering, drains peers, lists pods by place, offloads namespaces, explains what does not run, and makes
// kubeconfigs. The command line and the web console print and confirm what it returns; neither decides by itself.
//
// It reads home's API server and the supervisor's API, with the rights of its caller's client and socket. It writes
// labels of namespaces and Services, cordons and evictions, and has the supervisor make kubeconfigs. It holds no state:
// after a restart or a failure the same call is repeated. Its errors end in a cure.
//
//	operate.go     Cluster, what all of it works with
//	ending.go      what ends with unpeer, deny, and roles that are switched off; claims with data away
//	nodes.go       virtual nodes of a name; cordon, uncordon, drain
//	pods.go        pods by place
//	namespaces.go  offload, unoffload, and namespaces with their mode
//	open.go        what peers may reach
//	why.go         the answer of rivulet why
//	kubeconfig.go  kubeconfigs of users
//	workloads.go   namespaces, pods by place with what they wait for
//	exposed.go     what a browser on the LAN can open
//	pod.go         one pod: containers, events, logs
//	shell.go       a shell in a container
package operate

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
)

// Supervisor calls the API of the device's supervisor; api.Client calls it over its socket. in is sent as JSON (nil:
// no body), the answer is decoded into out (nil: ignored). Without a supervisor the error wraps api.ErrNotRunning.
type Supervisor interface {
	Call(ctx context.Context, method, path string, in, out any) error
}

// Cluster is the cluster of this device.
type Cluster struct {
	// Client is of home's API server. It is requested for each operation, because the API server may not run yet: the
	// error then has a cure, and wraps fs.ErrNotExist before the first start of the engine.
	Client     func() (kubernetes.Interface, error)
	Supervisor Supervisor
}

// Status is that of the supervisor.
func (c Cluster) Status(ctx context.Context) (st api.Status, err error) {
	return st, c.Supervisor.Call(ctx, http.MethodGet, "/v1/status", nil, &st)
}

// Peers are those among the discovered clusters.
func Peers(all []peer.View) []peer.View {
	return slices.DeleteFunc(slices.Clone(all), func(p peer.View) bool { return p.State.Apart() })
}

// NameOf is the name of a cluster, or the beginning of its ID if it has none.
func NameOf(v peer.View) string {
	if v.Name != "" {
		return v.Name
	}
	return v.ID.Short()
}

// labels is the merge patch for labels of an object; nil removes one.
func labels(change map[string]any) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": map[string]any{"labels": change}})
}
