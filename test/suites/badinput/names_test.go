package badinput

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/peer"
	"rivulet/test/harness/lab"
)

// Two clusters of one name peer, are told apart by ID everywhere, and each runs
// pods of the other's namespace of the same name.
func TestTwoClustersOfOneName(t *testing.T) {
	a, b := pair(t)
	for _, d := range []*lab.Device{a, b} {
		st, _ := status(t, d)
		other := st.Peers[0]
		for _, w := range []string{`a second cluster is called "pi"`, other.ID.Short(), st.ID.Short(), "--name", "RIVULET_NAME"} {
			if !strings.Contains(other.Reason, w) {
				t.Errorf("%q is missing in the notice on %s: %s", w, d.Name, other.Reason)
			}
		}
		if want := "pi-" + other.ID.Short(); len(st.VirtualNodes) != 1 || !strings.HasPrefix(st.VirtualNodes[0].Name, "pi-") || !strings.HasPrefix(want, st.VirtualNodes[0].Name) {
			t.Errorf("virtual nodes on %s: %+v, want one that is called like %s", d.Name, st.VirtualNodes, want)
		}
	}
	for _, d := range []*lab.Device{a, b} {
		must(t, d, "rivulet", "offload", "same", "--create", "--when", "remote")
	}
	for _, d := range []*lab.Device{a, b} {
		must(t, d, "rivulet", "kubectl", "-n", "same", "run", "p", "--image=rivulet.dev/pause:1", "--image-pull-policy=Never")
	}
	for _, d := range []*lab.Device{a, b} {
		must(t, d, "rivulet", "kubectl", "-n", "same", "wait", "--for=condition=Ready", "pod/p", "--timeout=45s")
		if node := must(t, d, "rivulet", "kubectl", "-n", "same", "get", "pod", "p", "-o", "jsonpath={.spec.nodeName}"); !strings.HasPrefix(node, "pi-") {
			t.Errorf("the pod of %s runs on %s", d.Name, node)
		}
		must(t, d, "rivulet", "kubectl", "delete", "ns", "same", "--wait=false")
	}
}

// A disk that was copied: both sides say so and how to mend it, nothing storms,
// and the cure, followed word by word on the copy, makes two peers of them.
func TestClonedDisk(t *testing.T) {
	a, b := pair(t)
	stop(t, a)
	stop(t, b)
	disk, err := os.ReadFile(a.Path(state + "/state.db"))
	if err != nil {
		t.Fatal(err)
	}
	must(t, b, "sh", "-c", "kill -KILL $(cat /run/rivulet/tunnel.pid)")
	if err := os.WriteFile(b.Path(state+"/state.db"), disk, 0o600); err != nil {
		t.Fatal(err)
	}
	marks := map[*lab.Device]int{a: len(log(t, a, 0)), b: len(log(t, b, 0))}
	start(t, a)
	start(t, b)
	var text string
	for _, d := range []*lab.Device{a, b} {
		ready(t, d)
		text = shows(t, d, 40*time.Second, "Refused", "has the identity of this cluster", "a disk was copied")
	}
	packets := received(t, a)
	time.Sleep(5 * time.Second) // what is measured is a time in which little happens
	if n := received(t, a) - packets; n > 100 {
		t.Errorf("%d packets in 5 s between the copies", n)
	}
	for d, mark := range marks {
		text := log(t, d, mark)
		n := strings.Count(text, "\n") - strings.Count(text, "msg=ready ") // a start has one of these for each component
		if n > 14 {
			t.Errorf("%s: %d lines in the log:\n%s", d.Name, n, text)
		}
	}
	cure := regexp.MustCompile(`\((mkdir [^)]+)\)`).FindStringSubmatch(text)
	if cure == nil {
		t.Fatalf("no command to follow in:\n%s", text)
	}
	stop(t, b)
	must(t, b, "sh", "-c", cure[1])
	start(t, b)
	eventually(t, time.Minute, func() error {
		for _, d := range []*lab.Device{a, b} {
			st, text := status(t, d)
			connected := 0
			for _, p := range st.Peers {
				if p.State == peer.Connected {
					connected++
				}
			}
			if connected != 1 {
				return fmt.Errorf("%s has %d peers that answer:\n%s", d.Name, connected, text)
			}
		}
		return nil
	})
}

func received(t *testing.T, d *lab.Device) int {
	t.Helper()
	n, err := strconv.Atoi(must(t, d, "cat", "/sys/class/net/eth0/statistics/rx_packets"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A host that is called otherwise since keeps its node, and pods keep running on it.
func TestHostNameChanges(t *testing.T) {
	a, _ := pair(t)
	pod(t, a, "named")
	before := life(t, a, "named")
	stop(t, a)
	must(t, a, "hostname", "Other.Example")
	cmd, err := a.Command(limit(t, 2*time.Minute), "env", "-u", "RIVULET_NAME", "PATH=/opt/rivulet", "rivulet", "run")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan result, 1)
	go func() { ended <- end(t, cmd) }()
	ready(t, a)
	if nodes := must(t, a, "rivulet", "kubectl", "get", "nodes", "-l", "!rivulet.dev/virtual-node", "-o", "name"); nodes != "node/pi" {
		t.Errorf("nodes: %s", nodes)
	}
	if after := life(t, a, "named"); after != before {
		t.Errorf("the pod was %s, is %s", before, after)
	}
	must(t, a, "rivulet", "kubectl", "delete", "pod", "named", "--wait=false")
	must(t, a, "sh", "-c", "kill -TERM $(cat /run/rivulet/supervisor.pid)")
	if r := <-ended; r.code != 0 {
		t.Errorf("ended with %d: %s", r.code, r.errOut)
	}
	must(t, a, "hostname", "a")
	start(t, a)
	peered(t, a)
}
