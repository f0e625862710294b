// Package failover tests, on four devices of a lab with the real binary, a cluster whose server may be lost: a is the
// server, b its standby, c a peer with pods of the cluster, d has the PostgreSQL with its objects. The tests share the
// devices, and run in the order of this file.
package failover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/api"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

const (
	programs = "/usr/lib/postgresql/15/bin/"
	// database is d's address, as the lab gives it.
	database = "10.77.0.14"
	address  = "postgres://rivulet@" + database + ":5432/lab?sslmode=disable"
)

var suite = labtest.Suite{Needs: map[string]string{programs + "initdb": "test/deps databases"}}

func TestMain(m *testing.M) {
	suite.Main(m, "failover", lab.Options{Devices: 4}, "/var/lib/rivulet/log/engine.log", "/var/lib/rivulet/log/tunnel.log")
}

// server is the device that is the server, other the one that could be.
var server, other *lab.Device

func c() *lab.Device { return suite.Devices["c"] }

// apply makes an object on the server.
func apply(t *testing.T, ctx context.Context, object string) {
	t.Helper()
	cmd, err := server.Command(ctx, "rivulet", "kubectl", "apply", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = strings.NewReader(object)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// pod is one with a command of the program web, on a node.
func pod(name, node string, command ...string) string {
	raw, err := json.Marshal(command)
	if err != nil {
		panic(err)
	}
	where := fmt.Sprintf(`"kubernetes.io/hostname":%q`, node)
	if node == "c" {
		where = `"type":"virtual-kubelet"`
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"both","labels":{"app":%[1]q}},"spec":{"restartPolicy":"Never","terminationGracePeriodSeconds":1,"nodeSelector":{%s},
 "containers":[{"name":"web","image":%q,"args":%s,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}`, name, where, mainjob.Image, raw)
}

func pods(ctx context.Context) (map[string]corev1.Pod, error) {
	out, err := server.Kubectl(ctx, "get", "pods", "-n", "both", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	all := map[string]corev1.Pod{}
	for _, p := range list.Items {
		all[p.Name] = p
	}
	return all, nil
}

// roles waits until the server's list of nodes has these roles, and both are Ready.
func roles(t *testing.T, ctx context.Context, limit time.Duration) {
	t.Helper()
	await.NoError(t, ctx, limit, fmt.Sprintf("%s is the server, %s a standby, both Ready", server.Name, other.Name), func() error {
		out, err := server.Run(ctx, "rivulet", "nodes", "-o", "json")
		if err != nil {
			return err
		}
		var list []struct{ Name, Role, State string }
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
		for _, n := range list {
			want := map[string]string{server.Name: "server", other.Name: "standby"}[n.Name]
			if n.Role != want || n.State != "Ready" {
				return fmt.Errorf("%+v", list)
			}
		}
		if len(list) != 2 {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
}

func TestBegin(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a, b, d := suite.Devices["a"], suite.Devices["b"], suite.Devices["d"]
	server, other = a, b
	if out := labtest.On(t, ctx, c(), "rivulet", "nodes", "standby", "nobody"); out.Code == 0 || !strings.Contains(out.ErrOut, `no worker of this cluster is called "nobody"`) {
		t.Errorf("%+v", out)
	}
	if err := d.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, d, "sh", "-ec", `mkdir -p /var/lib/sql && chown postgres /var/lib/sql && cd /var/lib/sql
		exec setpriv --reuid=postgres --regid=postgres --clear-groups sh -ec "$1"`, "sh", strings.ReplaceAll(`
		P/initdb -D pg -U rivulet -A trust >/dev/null
		echo "host all rivulet 10.77.0.0/24 trust" >> pg/pg_hba.conf
		P/pg_ctl -D pg -w -t 60 -l log -o '-k /tmp -h `+database+`' start >/dev/null
		P/createdb -h /tmp -U rivulet lab`, "P/", programs))
	for _, x := range []*lab.Device{a, b, c()} {
		if err := x.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Join(ctx, a); err != nil {
		t.Fatal(err)
	}
	if out := labtest.On(t, ctx, a, "rivulet", "nodes", "standby", "b"); out.Code == 0 || !strings.Contains(out.ErrOut, "a cluster with standbys has its objects in an SQL database") {
		t.Errorf("%+v", out)
	}
	labtest.Must(t, ctx, b, "rivulet", "leave", "--yes")
	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, a, "rivulet", "reset", "--yes", "--no-start")
	labtest.Must(t, ctx, a, "sh", "-c", `umask 077; mkdir -p /etc/rivulet && printf 'name: shelf\ndatastore: %s\n' "$1" > /etc/rivulet/config.yaml`, "sh", address)
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*lab.Device{a, b} {
		if err := x.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Join(ctx, a); err != nil {
		t.Fatal(err)
	}
	if err := mainjob.ImportImage(ctx, []*lab.Device{a, b, c()}); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, a, "rivulet", "nodes", "standby", "b")
	if out := labtest.On(t, ctx, b, "rivulet", "nodes", "standby", "b"); out.Code == 0 {
		t.Error("a standby has made itself one")
	}
	roles(t, ctx, time.Minute)
	if err := a.WaitPeers(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	if out := labtest.On(t, ctx, a, "rivulet", "vcluster", "create", "sam"); out.Code == 0 || !strings.Contains(out.ErrOut, "standby servers") {
		t.Errorf("%+v", out)
	}
	apply(t, ctx, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"both","labels":{"rivulet.dev/offload":"burst"}}}`)
	apply(t, ctx, pod("far", "c", "serve"))
	labtest.Kubectl(t, ctx, a, "wait", "-n", "both", "--for=condition=Ready", "--timeout=60s", "pod/far")
}

// beat is a pod on a node that asks the one at the peer on one connection.
func beat(t *testing.T, ctx context.Context, name, node string) {
	t.Helper()
	far := labtest.Kubectl(t, ctx, server, "get", "pod", "-n", "both", "far", "-o", "jsonpath={.status.podIP}")
	apply(t, ctx, pod(name, node, "beat", far+":8080"))
	labtest.Kubectl(t, ctx, server, "wait", "-n", "both", "--for=condition=Ready", "--timeout=60s", "pod/"+name)
	await.NoError(t, ctx, 30*time.Second, name+" has begun", func() error {
		out, err := server.Kubectl(ctx, "logs", "-n", "both", name)
		if err == nil && !strings.Contains(out, "50 answers") {
			err = errors.New(out)
		}
		return err
	})
}

var took = regexp.MustCompile(`answer \d+ took (\d+) ms`)

// longest is the longest time to an answer of a pod beat, whose connection has to be the same.
func longest(t *testing.T, ctx context.Context, name string) (most time.Duration) {
	t.Helper()
	out := labtest.Kubectl(t, ctx, server, "logs", "-n", "both", name)
	for _, m := range took.FindAllStringSubmatch(out, -1) {
		ms, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, time.Duration(ms)*time.Millisecond)
	}
	if n := strings.Count(out, "connected"); n != 1 {
		t.Errorf("%s has connected %d times:\n%s", name, n, out)
	}
	return most
}

// seen follows the state and the path of the cluster as its peer sees them, until stop; a path is one of a or b.
func seen(t *testing.T, ctx context.Context) (stop func() []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	all := make(chan []string, 1)
	go func() {
		var out []string
		for ctx.Err() == nil {
			var list []peer.View
			text, err := c().Run(ctx, "rivulet", "peers", "-o", "json")
			if err == nil && json.Unmarshal([]byte(text), &list) == nil {
				for _, v := range list {
					if now := string(v.State) + " " + v.Path; v.Name == "shelf" && (len(out) == 0 || out[len(out)-1] != now) {
						out = append(out, now)
					}
				}
			}
			changes.Wait(ctx, 300*time.Millisecond)
		}
		all <- out
	}()
	return func() []string { cancel(); return <-all }
}

// is returns an error unless the device is ready, as a worker or as the server. It may be starting again.
func is(ctx context.Context, d *lab.Device, worker bool) error {
	out, err := d.Run(ctx, "rivulet", "status", "-o", "json")
	var st api.Status
	if err := cmp.Or(json.Unmarshal([]byte(out), &st), err); err != nil {
		return err
	}
	if !st.Ready || (st.Member != nil) != worker {
		return fmt.Errorf("%s: ready %v, waiting %s, worker %v", d.Name, st.Ready, st.Waiting, st.Member != nil)
	}
	return nil
}

// lost ends the server in one way, and returns how it comes back.
type lost struct {
	name string
	end  func(ctx context.Context, d *lab.Device) error
	back func(ctx context.Context, d *lab.Device) error
}

var ways = []lost{
	{"power", func(ctx context.Context, d *lab.Device) error { return d.Kill(ctx, "power") }, func(ctx context.Context, d *lab.Device) error { return d.Start(ctx) }},
	{"supervisor", func(ctx context.Context, d *lab.Device) error { return d.Kill(ctx, "supervisor") }, func(ctx context.Context, d *lab.Device) error { return d.Start(ctx) }},
	{"cut off", func(_ context.Context, d *lab.Device) error { return suite.Lab.Cut(d.Name, "") }, func(context.Context, *lab.Device) error { return suite.Lab.Heal() }},
	{"without database", func(_ context.Context, d *lab.Device) error { return suite.Lab.Cut(d.Name, "d") }, func(context.Context, *lab.Device) error { return suite.Lab.Heal() }},
	{"frozen", func(ctx context.Context, d *lab.Device) error { return signal(ctx, d, "STOP") }, func(ctx context.Context, d *lab.Device) error { return signal(ctx, d, "CONT") }},
}

// planned is a switch by an operator, who does nothing to have the device back.
var planned = lost{"switch", func(ctx context.Context, d *lab.Device) error {
	_, err := d.Run(ctx, "rivulet", "nodes", "switch", "--yes")
	return err
}, func(context.Context, *lab.Device) error { return nil }}

// signal sends one to all programs of Rivulet on a device, pods and their shims included, but not to its init.
func signal(ctx context.Context, d *lab.Device, name string) error {
	_, err := d.Run(ctx, "sh", "-c", "kill -"+name+" -1")
	return err
}

// change loses the server, and checks that the other one goes on and that the first comes back as its standby.
func change(t *testing.T, ctx context.Context, way lost, name string) {
	t.Helper()
	before, err := pods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	beat(t, ctx, name, other.Name)
	states := seen(t, ctx)
	begun := time.Now()
	if err := way.end(ctx, server); err != nil {
		t.Fatal(err)
	}
	gone := server
	server, other = other, server
	took := await.NoError(t, ctx, 2*time.Minute, server.Name+" has the API", func() error {
		_, err := server.Kubectl(ctx, "--request-timeout=2s", "create", "configmap", "-n", "both", name+"-"+strconv.FormatInt(begun.Unix(), 10))
		return err
	})
	if flaps := virtualNode(t, ctx, begun); flaps != "" {
		t.Errorf("the virtual node of the peer: %s", flaps)
	}
	if err := way.back(ctx, gone); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 2*time.Minute, gone.Name+" is a worker", func() error {
		return is(ctx, gone, true)
	})
	roles(t, ctx, 3*time.Minute)
	if out := labtest.On(t, ctx, server, "rivulet", "status").Out; strings.Contains(out, "WARNING") {
		t.Errorf("%s: the new server warns:\n%s", way.name, out)
	}
	after, err := pods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range before {
		if now, there := after[name]; p.Spec.NodeName == "c" && (!there || now.UID != p.UID || now.Status.Phase != corev1.PodRunning || restarts(now) != restarts(p)) {
			t.Errorf("%s at the peer is %+v, before %+v", name, now.Status, p.Status)
		}
	}
	path := states()
	t.Logf("%s: the API after %.1f s, the longest answer over the tunnel %.1f s; the peer saw %q", way.name, took.Seconds(), longest(t, ctx, name).Seconds(), path)
	if most := longest(t, ctx, name); most > 15*time.Second {
		t.Errorf("%s: an answer over the tunnel took %s, want at most 15 s", way.name, most)
	}
	// The peer goes from one device to the other, and never back.
	var at []string
	for _, p := range path {
		if to := deviceAt(p); to != "" && !slices.Contains(at, to) {
			at = append(at, to)
		} else if to != "" && at[len(at)-1] != to {
			t.Errorf("%s: the peer went back to %s: %q", way.name, to, path)
		}
	}
	labtest.Kubectl(t, ctx, server, "delete", "pod", "-n", "both", name, "--now")
}

// deviceAt is the device to which a path leads, by the addresses that the lab gives; empty for none.
func deviceAt(path string) string {
	for address, name := range map[string]string{"direct 10.77.0.11:": "a", "direct [fe80::77:ff:fe00:b%": "a", "direct 10.77.0.12:": "b", "direct [fe80::77:ff:fe00:c%": "b"} {
		if strings.Contains(path, address) {
			return name
		}
	}
	return ""
}

// restarts are those of a pod's containers.
func restarts(p corev1.Pod) (n int32) {
	for _, s := range p.Status.ContainerStatuses {
		n += s.RestartCount
	}
	return n
}

// virtualNode is what the virtual node's Ready condition says if it changed since.
func virtualNode(t *testing.T, ctx context.Context, since time.Time) string {
	t.Helper()
	var n corev1.Node
	if err := json.Unmarshal([]byte(labtest.Kubectl(t, ctx, server, "get", "node", "c", "-o", "json")), &n); err != nil {
		t.Fatal(err)
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady && (cond.Status != corev1.ConditionTrue || cond.LastTransitionTime.Time.After(since)) {
			return fmt.Sprintf("%s since %s: %s", cond.Status, cond.LastTransitionTime, cond.Message)
		}
	}
	return ""
}

// Whatever happens to the server, the standby goes on, and never both at once.
func TestTheServerIsLost(t *testing.T) {
	for _, way := range append([]lost{planned}, ways...) {
		t.Run(way.name, func(t *testing.T) {
			change(t, suite.Bounded(t, 6*time.Minute), way, "beat-"+strings.ReplaceAll(way.name, " ", "-"))
		})
	}
}

// Without the database nobody is the server, pods go on, and one of the two is it again when it is back.
func TestTheDatabaseIsAway(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	beat(t, ctx, "beat-database", other.Name)
	pg := func(what string) {
		t.Helper()
		labtest.Must(t, ctx, suite.Devices["d"], "setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "sh", "-ec", "cd /var/lib/sql && "+programs+"pg_ctl -D pg -w -t 60 "+what+" >/dev/null")
	}
	on := other
	before := labtest.Must(t, ctx, on, "pgrep", "-x", "web")
	pg("-m immediate stop")
	await.NoError(t, ctx, time.Minute, server.Name+" says that it has no database", func() error {
		out := labtest.On(t, ctx, server, "rivulet", "status").Out
		for _, want := range []string{"datastore-unusable", "start the SQL server at " + database + ":5432"} {
			if !strings.Contains(out, want) {
				return errors.New(out)
			}
		}
		return nil
	})
	await.NoError(t, ctx, time.Minute, "nobody is the gateway", func() error {
		if out := labtest.On(t, ctx, server, "rivulet", "status").Out; !strings.Contains(out, "for the lease of the gateway in the database") {
			return errors.New(out)
		}
		return nil
	})
	if out := labtest.On(t, ctx, server, "ip", "-o", "link", "show", "riv0").Out; out != "" {
		t.Error("its tunnel is there without a lease:", out)
	}
	pg("-l log -o '-k /tmp -h " + database + "' start")
	await.NoError(t, ctx, 2*time.Minute, "one of them is the server", func() error {
		for _, d := range []*lab.Device{server, other} {
			if is(ctx, d, false) == nil {
				if d == other {
					server, other = other, server
				}
				return nil
			}
		}
		return errors.New("none is")
	})
	roles(t, ctx, 3*time.Minute)
	if now := labtest.Must(t, ctx, on, "pgrep", "-x", "web"); now != before {
		t.Errorf("the pod's process is %q, before %q", now, before)
	}
	t.Logf("the longest answer over the tunnel: %.1f s", longest(t, ctx, "beat-database").Seconds())
}

// Many times, in random order.
func TestManyTimes(t *testing.T) {
	labtest.NeedsLong(t)
	rounds, err := strconv.Atoi(os.Getenv("RIVULET_TEST_ROUNDS"))
	if err != nil {
		rounds = 50
	}
	for n := range rounds {
		way := ways[rand.IntN(len(ways))]
		if !t.Run(fmt.Sprintf("%d %s", n, way.name), func(t *testing.T) {
			change(t, suite.Bounded(t, 6*time.Minute), way, fmt.Sprintf("beat-%d", n))
		}) {
			return
		}
	}
}
