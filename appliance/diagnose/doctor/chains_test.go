package doctor

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rivulet/appliance/machine/host"
)

// Firewalls that no iptables has made, as users write them, in a network namespace. The cure is typed.
func TestNativeFirewall(t *testing.T) {
	const (
		input   = "add table inet f; add chain inet f in { type filter hook input priority 0; policy drop; }; add rule inet f in ct state established accept; "
		forward = "add table ip g; add chain ip g through { type filter hook forward priority 0; policy drop; }; "
	)
	for _, tc := range []struct {
		name, rules string
		want        Status
		closed      string
	}{
		{"none", "", Pass, ""},
		{"of what comes in", input, Warn, "inet f in"},
		{"in a table that iptables might have made", "add table ip filter; add chain ip filter input { type filter hook input priority 0; policy drop; }", Warn, "ip filter input"},
		{"opened", input + "add rule inet f in udp dport 7442 accept", Pass, ""},
		{"opened with others", input + "add rule inet f in udp dport { 5353, 7442 } accept", Pass, ""},
		{"opened by a range", input + "add rule inet f in udp dport 1025-65535 accept", Pass, ""},
		{"opened by a set of ranges", input + "add rule inet f in udp dport { 22, 1025-65535 } accept", Pass, ""},
		{"another range", input + "add rule inet f in udp dport { 22, 8000-9000 } accept", Warn, "inet f in"},
		{"opened in a chain of its own", input + "add chain inet f ports; add rule inet f in jump ports; add rule inet f ports udp dport 7442 accept", Pass, ""},
		{"a last rule", "add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet f in tcp dport 22 accept; add rule inet f in counter reject with icmpx admin-prohibited", Warn, "inet f in"},
		{"a rule that refuses some", "add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet f in tcp dport 23 drop", Pass, ""},
		{"of what is forwarded", forward, Warn, "ip g through"},
		{"of what is forwarded, opened", forward + `add rule ip g through iifname "cni0" accept`, Pass, ""},
		{"of what is forwarded, opened by network", forward + "add rule ip g through ip saddr 10.42.0.0/16 accept", Pass, ""},
		{"our own", "add table inet rivulet-x; add chain inet rivulet-x in { type filter hook input priority 0; policy drop; }", Pass, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := machine(t, nil)
			e.exec, e.closed = says(map[string]string{"iptables-save -t filter": ""}), system{}.Closed
			if err := host.OnThread(func() error {
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					return err
				}
				if out, err := exec.Command("nft", tc.rules).CombinedOutput(); tc.rules != "" && err != nil {
					t.Errorf("%s: %s", err, out)
					return nil
				}
				r := probeFirewall(t.Context(), e.Env)
				if r.Status != tc.want || !strings.Contains(r.Text, tc.closed) {
					t.Errorf("%v: %s", r.Status, r.Text)
				}
				if tc.want != Warn {
					return nil
				}
				cure, _, _ := strings.Cut(r.Cure, "; and the same")
				if out, err := exec.Command("sh", "-ec", cure).CombinedOutput(); err != nil {
					t.Errorf("%s: %s", cure, out)
				}
				if r := probeFirewall(t.Context(), e.Env); r.Status != Pass {
					t.Errorf("with the cure %s: %s", cure, r.Text)
				}
				return nil
			}); err != nil {
				t.Fatal("make root: ", err)
			}
		})
	}
}

// A VPN that takes everything by a rule is seen by the kernel's answer.
func TestPodsThatLeaveByAVPN(t *testing.T) {
	e := machine(t, nil)
	e.links, e.routeTo = system{}.Links, system{}.RouteTo
	if err := host.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		for _, step := range []struct {
			do   string
			want Status
		}{
			{"ip link add cni0 type bridge; ip addr add 10.42.0.1/24 dev cni0; ip link set cni0 up; ip link add vpn0 type veth peer name vpn1; ip link set vpn0 up; ip link set vpn1 up", Pass},
			{"ip route add default dev vpn0 table 52; ip rule add priority 5270 table 52", Fail},
			{"ip rule add priority 200 to 10.42.0.0/16 lookup main", Pass},
		} {
			if out, err := exec.Command("sh", "-ec", step.do).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %s", step.do, out)
			}
			if r := probeCIDR(t.Context(), e.Env); r.Status != step.want || step.want == Fail && !strings.Contains(r.Text, "leave by vpn0 and not by cni0") {
				t.Errorf("after %s: %v %s", step.do, r.Status, r.Text)
			}
		}
		return nil
	}); err != nil {
		t.Fatal("make root: ", err)
	}
}
