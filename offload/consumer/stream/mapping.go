package stream

import "net/url"

// mapping is the sub-resource of a pod for a kubelet's route, and the names of its parameters there. Other parameters
// are not passed on.
type mapping struct {
	subresource string
	names       map[string]string
	command     bool // a command with a result
}

var (
	logs = mapping{subresource: "log", names: map[string]string{
		"follow": "follow", "previous": "previous", "timestamps": "timestamps", "stream": "stream",
		"sinceSeconds": "sinceSeconds", "sinceTime": "sinceTime", "tailLines": "tailLines", "limitBytes": "limitBytes"}}
	exec        = mapping{"exec", map[string]string{"input": "stdin", "output": "stdout", "error": "stderr", "tty": "tty", "command": "command"}, true}
	attach      = mapping{"attach", streams, true}
	portForward = mapping{subresource: "portforward", names: map[string]string{"port": "ports"}}

	streams = map[string]string{"input": "stdin", "output": "stdout", "error": "stderr", "tty": "tty"}
)

func (m mapping) path(base, twin, pod string) string {
	return base + "/api/v1/namespaces/" + twin + "/pods/" + pod + "/" + m.subresource
}

// query translates the parameters. A kubelet expects 1 for true, which the API accepts as well; absent parameters are
// false.
func (m mapping) query(from url.Values, container string) url.Values {
	to := url.Values{}
	for kubelet, api := range m.names {
		for _, v := range from[kubelet] {
			if _, flag := streams[kubelet]; flag {
				if v != "1" && v != "true" {
					continue
				}
				v = "true"
			}
			to.Add(api, v)
		}
	}
	if container != "" {
		to.Set("container", container)
	}
	// An exec without these has a default of true in the API.
	if _, ok := m.names["input"]; ok {
		for _, out := range []string{"stdout", "stderr"} {
			if !to.Has(out) {
				to.Set(out, "false")
			}
		}
	}
	return to
}
