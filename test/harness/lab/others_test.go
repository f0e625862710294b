package lab

import (
	"bufio"
	"context"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"rivulet/test/harness/tree"
)

func TestParseWith(t *testing.T) {
	for text, want := range map[string]string{"": "", "docker": "docker", "ra,dhcp": "ra,dhcp"} {
		if got, err := ParseWith(text); err != nil || strings.Join(got, ",") != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	if all, err := ParseWith("all"); err != nil || len(all) != len(others) {
		t.Errorf("all: %q, %v", all, err)
	}
	for _, bad := range []string{"foo", "docker,", "docker,foo", "all,docker", "Docker", " docker"} {
		_, err := ParseWith(bad)
		if err == nil || !strings.Contains(err.Error(), "docker,podman") {
			t.Errorf("%q: %v does not name those that are known", bad, err)
		}
	}
}

// The page shows each of them as the program says it.
func TestThePageListsOthers(t *testing.T) {
	page, err := os.ReadFile(tree.Path("docs", "design", "lab.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range Others() {
		if row := "| `" + o.Name + "` | " + o.Does + " | " + o.From + " |\n"; !strings.Contains(string(page), row) {
			t.Errorf("docs/design/lab.md lacks\n%s", row)
		}
	}
}

// A device has all that other software makes there before rivulet starts, keeps it, and has it again after a power cut.
func TestOthers(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	tr := newTraces(t)
	t.Setenv(strings.TrimSuffix(markEnv, "="), tr.mark)
	all, err := ParseWith("all")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Up(ctx, Options{Dir: tr.dir, Binary: standInBinary(t), Devices: 1, Env: map[string][]string{"": tr.env()}, With: all})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = Down(ctx, tr.dir) }()
	a, err := l.Device("a")
	if err != nil {
		t.Fatal(err)
	}
	s := story{T: t, ctx: ctx, lab: l, a: a}
	looks := func() {
		t.Helper()
		for _, fact := range []struct{ show, want string }{
			{"iptables -S", "-P INPUT DROP"},
			{"iptables -S", "-P FORWARD DROP"},
			{"iptables -S", "-A DOCKER-FORWARD -i docker0 -j ACCEPT"},
			{"iptables -S", "-A ufw-user-input -p udp -m udp --dport 7442 -j ACCEPT"},
			{"iptables -S", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited"},
			{"iptables -S ts-input", "-A ts-input -s 100.64.0.0/10 ! -i tailscale0 -j DROP"},
			{"iptables -t nat -S", "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"},
			{"ip6tables -S", "-P INPUT DROP"},
			{"nft list tables", "table inet netavark\ntable inet lxd"},
			{"ip -br -4 addr", "10.11.1.1/24"},
			{"ip -br -4 addr", "10.88.0.1/16"},
			{"ip -br -4 addr", "100.101.1.11/32"},
			{"ip rule", "220:\tfrom all lookup 220"},
			{"ip rule", "5270:\tfrom all lookup 52"},
			{"ip route get 1.1.1.1", "dev eth0 table 220 src 10.3.0.11"},
			{"ip route get 10.77.0.99", "dev eth0 table 220 src 10.77.0.11"},
			{"ip route show table 52", "default dev tailscale0"},
			{"ip route show table 52", "throw 10.77.0.0/24"},
			{"ip route", "default via 10.77.0.1 dev eth0 proto dhcp"},
			{"ip -6 route", "default via fe80::1 dev eth0 proto ra"},
			{"ip -6 addr show dev eth0", "fd77::11/64"},
			{"readlink /etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"},
			{"cat /run/systemd/resolve/resolv.conf", "nameserver 127.0.0.1\nnameserver 10.77.0.1\nsearch lan"},
			{"nslookup nas.lan", "Address: 10.77.0.1"},
			{"nslookup nas.lan 10.77.0.1", "Address: 10.77.0.1"},
		} {
			if got := s.out(a, "sh", "-c", strings.Replace(fact.show, "nslookup", "busybox nslookup -type=a", 1)); !strings.Contains(got, fact.want) {
				t.Errorf("%s: no %q in\n%s", fact.show, fact.want, got)
			}
		}
	}
	looks()
	// What repeats is seen by what watches the network.
	watch, err := a.Command(ctx, "timeout", "60", "ip", "-o", "monitor", "address", "link")
	if err != nil {
		t.Fatal(err)
	}
	events, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	missing := []string{"fd77::11/64", "10.77.0.11/24", "vethd0c7e5"}
	for lines := bufio.NewScanner(events); len(missing) > 0 && lines.Scan(); {
		missing = slices.DeleteFunc(missing, func(what string) bool { return strings.Contains(lines.Text(), what) })
	}
	if len(missing) > 0 {
		t.Errorf("in 60 s nothing happened to %q", missing)
	}
	_ = watch.Process.Signal(syscall.SIGTERM)
	_ = watch.Wait()
	for script, want := range map[string]string{
		"timeout 3 busybox nslookup -type=a example.org; echo ended with $?": "ended with 124", // it is silent
		"busybox ping -c 1 -W 1 1.1.1.1 2>&1 || true":                        "100% packet loss",
	} {
		if out := s.out(a, "sh", "-c", script); !strings.Contains(out, want) {
			t.Errorf("%s: no %q in %s", script, want, out)
		}
	}
	if err := a.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	looks()
}
