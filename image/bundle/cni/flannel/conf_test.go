package flannel

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// k3s is what k3s writes to 10-flannel.conflist, as the runtime passes it on.
const k3s = `{"cniVersion":"1.0.0","name":"cbr0","type":"flannel",
	"delegate":{"hairpinMode":true,"forceAddress":true,"isDefaultGateway":true}}`

const onLoopback = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.0.1/24\nFLANNEL_MTU=65536\nFLANNEL_IPMASQ=true\n"

func TestDelegated(t *testing.T) {
	bridge := func(change map[string]any) map[string]any {
		want := map[string]any{
			"cniVersion": "1.0.0", "name": "cbr0", "type": "bridge", "mtu": 1500., "ipMasq": false,
			"hairpinMode": true, "forceAddress": true, "isDefaultGateway": true, "isGateway": true,
			"ipam": map[string]any{
				"type":   "host-local",
				"ranges": []any{[]any{map[string]any{"subnet": "10.42.0.0/24"}}},
				"routes": []any{map[string]any{"dst": "10.42.0.0/16"}},
			},
		}
		for k, v := range change {
			want[k] = v
		}
		return want
	}
	for _, c := range []struct {
		name, conf, lease string
		want              map[string]any
		fails             string
	}{
		{"lo's MTU is not a pod's", k3s, onLoopback, bridge(nil), ""},
		{"the MTU of a real link", k3s, strings.Replace(onLoopback, "65536", "1450", 1), bridge(map[string]any{"mtu": 1450.}), ""},
		{"no MTU", k3s, strings.Replace(onLoopback, "FLANNEL_MTU=65536\n", "", 1), bridge(nil), ""},
		{"the user's MTU", strings.Replace(k3s, `"delegate"`, `"mtu":1420,"delegate"`, 1), onLoopback, bridge(map[string]any{"mtu": 1420.}), ""},
		{"the delegate's MTU wins", strings.Replace(k3s, `"delegate":{`, `"mtu":1420,"delegate":{"mtu":9000,`, 1), onLoopback, bridge(map[string]any{"mtu": 9000.}), ""},
		{"nobody else masquerades", k3s, strings.Replace(onLoopback, "IPMASQ=true", "IPMASQ=false", 1), bridge(map[string]any{"ipMasq": true}), ""},
		{"capabilities are passed on", strings.Replace(k3s, `"delegate"`, `"runtimeConfig":{"mac":"02:00:00:00:00:01"},"delegate"`, 1), onLoopback,
			bridge(map[string]any{"runtimeConfig": map[string]any{"mac": "02:00:00:00:00:01"}}), ""},
		{"both address families", k3s, onLoopback + "FLANNEL_IPV6_NETWORK=fd00:42::/56\nFLANNEL_IPV6_SUBNET=fd00:42::1/64\n",
			bridge(map[string]any{"ipam": map[string]any{
				"type":   "host-local",
				"ranges": []any{[]any{map[string]any{"subnet": "10.42.0.0/24"}}, []any{map[string]any{"subnet": "fd00:42::/64"}}},
				"routes": []any{map[string]any{"dst": "10.42.0.0/16"}, map[string]any{"dst": "fd00:42::/56"}},
			}}), ""},
		{"the delegate may not choose addresses", strings.Replace(k3s, `"delegate":{`, `"delegate":{"ipam":{},`, 1), onLoopback, nil, `must not set "ipam"`},
		{"a delegate of no type", strings.Replace(k3s, `"delegate":{`, `"delegate":{"type":3,`, 1), onLoopback, nil, "delegate.type is 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf, err := parseConf([]byte(c.conf))
			if err != nil {
				t.Fatal(err)
			}
			lease, err := parseLease(strings.NewReader(c.lease))
			if err != nil {
				t.Fatal(err)
			}
			data, plugin, err := conf.delegated(lease, 1500)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Fatalf("error %v, want %q", err, c.fails)
				}
				return
			}
			var got map[string]any
			if err != nil || plugin != "bridge" || json.Unmarshal(data, &got) != nil || !reflect.DeepEqual(got, c.want) {
				t.Fatalf("plugin %q, error %v\n got %v\nwant %v", plugin, err, got, c.want)
			}
		})
	}
}

func TestPodMTU(t *testing.T) {
	for _, tt := range []struct{ conf, lease, links, want int }{
		{0, 65536, 1500, 1500}, {0, 65536, 1400, 1400}, {0, 65536, 9000, 9000}, {0, 0, 1400, 1400},
		{0, 1450, 1500, 1450}, {0, 1450, 1400, 1400}, {0, 60, 1500, 1500}, {1420, 65536, 9000, 1420},
	} {
		if got := (conf{MTU: tt.conf}).podMTU(lease{mtu: tt.lease}, tt.links); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
	if b := (conf{}).bridge(); b != "cni0" {
		t.Errorf("bridge %q", b)
	}
	if b := (conf{Delegate: map[string]any{"bridge": "br7"}}).bridge(); b != "br7" {
		t.Errorf("bridge %q", b)
	}
}

func FuzzLease(f *testing.F) {
	f.Add(onLoopback)
	f.Add("FLANNEL_SUBNET=10.42.0.1/24")
	f.Add("FLANNEL_NETWORK=10.42.0.0/16,10.44.0.0/16\n\n=\nFLANNEL_MTU=x")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseLease(strings.NewReader(text))
		if err != nil {
			return
		}
		if len(l.subnets) == 0 {
			t.Fatal("a lease without a subnet was taken")
		}
		for _, p := range append(l.subnets, l.networks...) {
			if p != p.Masked() {
				t.Fatalf("%s has host bits, which host-local refuses", p)
			}
		}
	})
}
