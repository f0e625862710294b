package prometheus

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"rivulet/appliance/api"
	"rivulet/fabric/wgkey"
)

// notExported are the fields of a status that are no metrics, or all below one, and why.
var notExported = map[string]string{
	"NodeAddress":                        "an address; where it is missing the problem host-network says so",
	"Waiting":                            "text; rivulet_stage_ready has what is not ready",
	"Stages.Detail":                      "text",
	"Stages.Since":                       "Prometheus has when a value changed",
	"Stages.SinceBoot":                   "rivulet_time_to_ready_seconds has it for the device",
	"Host.CgroupV1":                      "constant; doctor's probe cgroup",
	"Host.SysResource":                   "constant; doctor's probes",
	"Nodes.ID":                           "rivulet_cluster_node_connected has the node's name",
	"Nodes.Reason":                       "text",
	"Nodes.Path":                         "text; rivulet_tunnel_path_used has its kind",
	"Nodes.Version":                      "text; rivulet nodes",
	"Nodes.Standby":                      "rivulet nodes; the problem standby-behind says if none could take over",
	"Nodes.Behind":                       "the problem standby-behind",
	"Member":                             "text; the problem worker-removed says if it has ended",
	"Peers.Reason":                       "text",
	"Peers.Notice":                       "text",
	"Peers.Since":                        "Prometheus has when a value changed",
	"Peers.Found":                        "names of sources, which change all the time",
	"Peers.Addrs":                        "addresses, which a peer chooses",
	"Peers.Path":                         "rivulet_tunnel_path_used",
	"Peers.Paths":                        "rivulet_tunnel_path_rtt_seconds",
	"Peers.Trust.Source":                 "an address",
	"Peers.Certificate":                  "a key",
	"Peers.Node":                         "of a node, which is no peer",
	"Peers.Behind":                       "of a node, which is no peer",
	"Peers.Standby":                      "of a node, which is no peer",
	"Peers.Unconfirmed":                  "lasts a minute at most; such a peer is a peer or gone then",
	"Peers.WireGuardKey":                 "a key",
	"Peers.NextWireGuardKey":             "a key",
	"Peers.PeerCIDR":                     "an address",
	"Peers.PeerMappedCIDR":               "an address",
	"Peers.LocalMappedCIDR":              "an address",
	"Peers.TunnelAddress":                "an address",
	"Peers.Control":                      "an address",
	"Peers.Tunnel":                       "an address",
	"Peers.KeyProved":                    "internal to the change of keys",
	"Peers.NextKeyProved":                "internal to the change of keys",
	"Peers.Heard":                        "internal to the protocol",
	"Peers.Skip":                         "internal to the protocol",
	"Tunnel.PID":                         "rivulet_process_running",
	"Tunnel.Version":                     "internal: the supervisor replaces another version",
	"Tunnel.Port":                        "constant",
	"Tunnel.Seen":                        "addresses",
	"Brokers":                            "the problem broker has those that are not reached",
	"Tunnel.Brokers":                     "addresses and IDs; the problem broker has those that are not reached",
	"Tunnel.Peers.Endpoint":              "an address",
	"Tunnel.Peers.Paths.Addr":            "an address, which a peer chooses",
	"Tunnel.Peers.Paths.Via":             "an ID, which a peer chooses; rivulet_tunnel_path_used has the kind",
	"Tunnel.Peers.Problem":               "text; rivulet_tunnel_peer_unserved has that there is one",
	"VirtualNodes.Reason":                "text",
	"VirtualNodes.KubeVersion":           "rivulet_peer_info has it",
	"Namespaces.To":                      "a name",
	"Namespaces.Reflect":                 "a setting of kinds",
	"Footprint.Processes.PID":            "changes with each start; rivulet_process_running",
	"Footprint.DiskName":                 "a name",
	"Clock.Source":                       "rivulet_clock_synchronized has what matters",
	"Clock.Floor":                        "internal; rivulet_clock_plausible",
	"Config.File":                        "a path",
	"Peers.Labels":                       "names, which the operator chooses",
	"Consumers.Unlisted":                 "rivulet tenants; rivulet_consumer_pods has what it still has here",
	"Consumers.VCluster":                 "rivulet_vcluster_created has them",
	"Consumers.Course":                   "a name; rivulet course list",
	"Pods.VClusters":                     "rivulet_vcluster_pods",
	"Relayed":                            "pairs of peers; rivulet peers. Their bytes are in those of the tunnel",
	"Namespaces.Prefer":                  "a setting of namespaces",
	"ClusterSet.Services.Namespace":      "names, and what is not counted; rivulet services",
	"ClusterSet.Services.Name":           "names, and what is not counted; rivulet services",
	"ClusterSet.Services.Type":           "names, and what is not counted; rivulet services",
	"ClusterSet.Services.Exported":       "names, and what is not counted; rivulet services",
	"ClusterSet.Services.Imported":       "names, and what is not counted; rivulet services",
	"ClusterSet.Services.Why":            "names, and what is not counted; rivulet services",
	"ClusterSet.Services.From.ID":        "names, and what is not counted; rivulet services",
	"ClusterSet.Services.From.Name":      "names, and what is not counted; rivulet services",
	"ClusterSet.Services.From.Endpoints": "names, and what is not counted; rivulet services",
	"ClusterSet.Services.From.Used":      "names, and what is not counted; rivulet services",
	"ClusterSet.Services.From.Share":     "settings of Services, and what follows from them; rivulet services",
	"ClusterSet.Services.Weights":        "settings of Services, and what follows from them; rivulet services",
	"ClusterSet.Services.WeightsFault":   "settings of Services, and what follows from them; rivulet services",
	"ClusterSet.Members":                 "rivulet_peers",
	"ClusterSet.Invalid":                 "names; the conditions of ServiceExports have it",
	"Services.Name":                      "names; there is no bound on them",
	"Services.At":                        "addresses",
	"Upgrade.To":                         "a version; rivulet_build_info has the one that runs",
	"Upgrade.From":                       "a version; rivulet_build_info has the one that runs",
	"Upgrade.Last":                       "the problem upgrade-undone has its failure",
	"Health.Title":                       "text, constant for its code",
	"Health.Subject":                     "names of other clusters",
	"Health.Text":                        "text",
	"Health.Cure":                        "text",
	"Health.Since":                       "Prometheus has when a value changed",
}

// Every field of a status, or of a virtual cluster, changes a metric, or is listed with the reason why not: a new field
// is not forgotten.
func TestEveryFieldIsExportedOrListed(t *testing.T) {
	type all struct {
		api.Status
		VClusters []api.VCluster
	}
	fresh := func() *all {
		st, v := full()
		return &all{st, v}
	}
	text := func(a *all) string { return render(t, source(a.Status, a.VClusters), then) }
	plain := text(fresh())
	listed := map[string]bool{}
	for _, leaf := range leaves(reflect.ValueOf(fresh()).Elem(), "") {
		exported := false
		for _, clear := range []bool{false, true} {
			a := fresh()
			if !change(reflect.ValueOf(a).Elem(), leaf.way, clear) {
				t.Errorf("full has nothing in %s", leaf.path)
			}
			exported = exported || text(a) != plain
		}
		of := leaf.path
		for notExported[of] == "" && strings.Contains(of, ".") {
			of = of[:strings.LastIndex(of, ".")]
		}
		why := notExported[of]
		switch {
		case exported && why != "":
			t.Errorf("%s is exported, and listed: %s", leaf.path, why)
		case !exported && why == "":
			t.Errorf("%s is neither exported nor listed in notExported with the reason", leaf.path)
		}
		listed[of] = true
	}
	for path, why := range notExported {
		if why != "" && !listed[path] {
			t.Errorf("there is no %s: remove it from notExported", path)
		}
	}
	if len(listed) < 30 {
		t.Errorf("only %d fields found", len(listed))
	}
}

// leaf is one field, by its names from the root; embedded structs have none.
type leaf struct {
	path string
	way  []int // indexes of fields; elements of slices and maps are the first ones
}

var whole = []reflect.Type{reflect.TypeFor[time.Time](), reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.AddrPort](), reflect.TypeFor[netip.Prefix](), reflect.TypeFor[resource.Quantity](), reflect.TypeFor[wgkey.Public]()}

func isLeaf(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer:
		return isLeaf(t.Elem())
	case reflect.Slice, reflect.Map:
		return t.Elem().Kind() != reflect.Struct || slices.Contains(whole, t.Elem())
	case reflect.Struct:
		return slices.Contains(whole, t)
	}
	return true
}

func leaves(v reflect.Value, path string) (out []leaf) {
	t := v.Type()
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name := strings.TrimPrefix(path+"."+f.Name, ".")
		if f.Anonymous {
			name = path
		}
		if isLeaf(f.Type) {
			out = append(out, leaf{name, []int{i}})
			continue
		}
		for _, l := range leaves(reflect.New(f.Type).Elem(), name) {
			out = append(out, leaf{l.path, append([]int{i}, l.way...)})
		}
	}
	return out
}

// change changes the field below v, or clears a text, list or map. It returns false if there is none.
func change(v reflect.Value, way []int, clear bool) bool {
	switch {
	case v.Kind() == reflect.Pointer && !isLeaf(v.Type()):
		return !v.IsNil() && change(v.Elem(), way, clear)
	case v.Kind() == reflect.Slice && !isLeaf(v.Type()):
		return v.Len() > 0 && change(v.Index(0), way, clear)
	case v.Kind() == reflect.Map && !isLeaf(v.Type()):
		for _, key := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(key))
			if e.Type() == reflect.TypeFor[api.Room]() && e.FieldByName("Allocatable").Len() == 0 {
				continue // of a virtual node, which the offer has
			}
			done := change(e, way, clear)
			v.SetMapIndex(key, e)
			return done
		}
		return false
	case len(way) > 0:
		return change(v.Field(way[0]), way[1:], clear)
	}
	if k := v.Kind(); clear && (k == reflect.String || k == reflect.Slice || k == reflect.Map) {
		there := v.Len() > 0
		v.SetZero()
		return there
	}
	return alter(v)
}

func alter(v reflect.Value) bool {
	switch x := v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(x.Add(time.Hour)))
		return !x.IsZero()
	case time.Duration:
		v.SetInt(int64(x + time.Second))
		return true
	case netip.Addr:
		v.Set(reflect.ValueOf(x.Next()))
		return true
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.AddrPortFrom(x.Addr(), x.Port()+1)))
		return true
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.PrefixFrom(x.Addr(), x.Bits()-1)))
		return true
	case wgkey.Public:
		other, err := wgkey.Generate()
		if err != nil {
			panic(err)
		}
		v.Set(reflect.ValueOf(other.Public()))
		return !x.IsZero()
	case resource.Quantity:
		x.Add(resource.MustParse("1"))
		v.Set(reflect.ValueOf(x))
		return true
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.String:
		if v.Len() == 0 {
			return false
		}
		v.SetString(v.String() + "x")
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(v.Int() + 1)
	case reflect.Uint, reflect.Uint16, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() + 1)
	case reflect.Array:
		e := v.Index(0)
		e.SetUint(e.Uint() ^ 1)
	case reflect.Slice:
		if v.Len() == 0 {
			return false
		}
		v.Set(reflect.AppendSlice(v, v.Slice(0, 1)))
	case reflect.Map:
		if v.Len() == 0 {
			return false
		}
		for _, key := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(key))
			if q, ok := e.Interface().(resource.Quantity); ok {
				q.Add(resource.MustParse("1"))
				v.SetMapIndex(key, reflect.ValueOf(q))
				continue
			}
			other := reflect.New(key.Type()).Elem()
			other.SetString(key.String() + "x")
			v.SetMapIndex(key, reflect.Value{})
			v.SetMapIndex(other, e)
			if _, names := v.Interface().(map[string]int); !names {
				v.SetMapIndex(key, e)
			}
			break
		}
	case reflect.Interface:
		v.Set(reflect.ValueOf("another"))
	case reflect.Pointer:
		return !v.IsNil() && alter(v.Elem())
	default:
		panic(v.Type().String())
	}
	return true
}
