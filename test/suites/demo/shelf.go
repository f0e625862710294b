package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
)

const (
	shelfClusters  = "a=1+2,b=1"
	shelfNamespace = "shelf"
	shelfDownload  = 256 << 20 // bytes; what buffers hold of it is far below half
	downloadLimit  = 2 * time.Minute
)

// shelf is a cluster of three devices and its peer.
type shelf struct {
	server, first, second, peer *lab.Device // a, its workers, b
	tell                        func(string, ...any)
}

// makeShelf makes a lab, which stays, and plays the life of a cluster of three devices on it.
func makeShelf(ctx context.Context, dir, binary string, tell func(string, ...any)) error {
	clusters, err := lab.ParseClusters(shelfClusters)
	if err != nil {
		return err
	}
	l, err := lab.Up(ctx, lab.Options{Dir: dir, Binary: binary, Clusters: clusters, Tell: tell})
	if err != nil {
		return err
	}
	tell("waiting for k3s on each device; then a1 and a2 join a: rivulet token create, rivulet join TOKEN")
	if err := l.Join(ctx, clusters); err != nil {
		return err
	}
	devices, err := l.Devices()
	if err != nil {
		return err
	}
	s := &shelf{devices[0], devices[1], devices[2], devices[3], tell}
	if err := s.server.WaitPeers(ctx, s.peer.Name); err != nil {
		return err
	}
	if err := mainjob.ImportImage(ctx, devices); err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{s.nodes, s.everywhere, s.withThePeer, s.serverOff, s.workerOff, s.workerRemoved} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// show runs a command on a device and prints both.
func show(ctx context.Context, d *lab.Device, args ...string) error {
	out, err := d.Run(ctx, args...)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s$ %s\n%s\n", d.Name, strings.Join(args, " "), out)
	return nil
}

func (s *shelf) apply(ctx context.Context, object string) error {
	_, err := s.server.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", object)
	return err
}

func (s *shelf) nodes(ctx context.Context) error {
	s.tell("all nodes are Ready")
	return show(ctx, s.server, "rivulet", "nodes")
}

// everywhere has a Deployment with a replica on each node.
func (s *shelf) everywhere(ctx context.Context) error {
	s.tell("kubectl apply: Deployment web, three replicas, spread over the nodes")
	err := s.apply(ctx, fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{
 "terminationGracePeriodSeconds":1,"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","nodeTaintsPolicy":"Honor","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"web"}}}],
 "containers":[{"name":"web","image":%q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}}}`, mainjob.Image))
	if err != nil {
		return err
	}
	return s.runs(ctx, map[string]int{"a": 1, "a1": 1, "a2": 1})
}

// runs waits until the replicas of the Deployment run so.
func (s *shelf) runs(ctx context.Context, want map[string]int) error {
	err := await.Until(ctx, func() error {
		pods, err := s.replicas(ctx)
		if err != nil {
			return err
		}
		where := mainjob.Where(pods)
		for node, n := range want {
			if where[node] != n || len(pods) != 3 {
				return fmt.Errorf("demo: the replicas run on %v, want %v", where, want)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return show(ctx, s.server, "rivulet", "kubectl", "get", "pods", "-o", "wide")
}

func (s *shelf) replicas(ctx context.Context) ([]corev1.Pod, error) {
	out, err := s.server.Kubectl(ctx, "get", "pods", "-l", "app=web", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("demo: kubectl's answer: %w", err)
	}
	return list.Items, nil
}

// withThePeer has a pod on a worker and one at the peer, each with a Service, and each asks for the other.
func (s *shelf) withThePeer(ctx context.Context) error {
	s.tell("namespace %s may use the peer: pod near is on worker %s, pod far at %s, each has a Service", shelfNamespace, s.first.Name, s.peer.Name)
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%[1]q,"namespace":%[2]q,"labels":{"name":%[1]q}},"spec":{"terminationGracePeriodSeconds":1,"nodeSelector":{%[3]s},
 "containers":[{"name":%[1]q,"image":%[4]q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":%[1]q,"namespace":%[2]q},"spec":{"selector":{"name":%[1]q},"ports":[{"port":80,"targetPort":8080}]}}`
	err := s.apply(ctx, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"rivulet.dev/offload":"burst"}}}`, shelfNamespace))
	if err == nil {
		err = s.apply(ctx, `{"apiVersion":"v1","kind":"List","items":[`+
			fmt.Sprintf(pod, "near", shelfNamespace, `"kubernetes.io/hostname":"`+s.first.Name+`"`, mainjob.Image)+","+
			fmt.Sprintf(pod, "far", shelfNamespace, `"type":"virtual-kubelet"`, mainjob.Image)+`]}`)
	}
	if err == nil {
		_, err = s.server.Kubectl(ctx, "wait", "-n", shelfNamespace, "--for=condition=Ready", "--timeout=60s", "pod/near", "pod/far")
	}
	if err == nil {
		err = show(ctx, s.server, "rivulet", "kubectl", "get", "pods", "-n", shelfNamespace, "-o", "wide")
	}
	if err != nil {
		return err
	}
	out, err := s.server.Kubectl(ctx, "get", "pods", "-n", shelfNamespace, "-o", "jsonpath={.items[*].spec.nodeName}")
	if want := s.peer.Name + " " + s.first.Name; err != nil || out != want {
		return errors.Join(fmt.Errorf("demo: far and near run on %q, want %q", out, want), err)
	}
	return s.bothWays(ctx)
}

// bothWays waits until near and far have asked each other through their Services.
func (s *shelf) bothWays(ctx context.Context) error {
	for _, way := range [][2]string{{"near", "far"}, {"far", "near"}} {
		err := await.Until(ctx, func() error {
			out, err := s.server.Kubectl(ctx, "exec", "-n", shelfNamespace, way[0], "--", "web", "show", "http://"+way[1]+"."+shelfNamespace+".svc.cluster.local/")
			if err == nil && !strings.Contains(out, `"`+way[1]+`"`) {
				err = fmt.Errorf("demo: %s got %q from %s", way[0], out, way[1])
			}
			return err
		})
		if err != nil {
			return err
		}
		s.tell("%s asked http://%s, and %s answered", way[0], way[1], way[1])
	}
	return nil
}

// serverOff takes the power of the server, which is the gateway between worker and peer, in the middle of a download of
// near from far.
func (s *shelf) serverOff(ctx context.Context) error {
	s.tell("near downloads %d MiB from http://far; half way the server's power is cut, and switched on again at once", shelfDownload>>20)
	id, err := s.first.Run(ctx, "rivulet", "crictl", "ps", "-q", "--name", "^near$")
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, downloadLimit)
	defer cancel()
	cmd, err := s.first.Command(limit, "rivulet", "crictl", "exec", strings.TrimSpace(id), "wget", "-q", "-O", "-",
		fmt.Sprintf("http://far.%s.svc.cluster.local/bytes?n=%d", shelfNamespace, shelfDownload))
	if err != nil {
		return err
	}
	var errOut bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &errOut, time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	whole, pause, err := readThrough(out, shelfDownload, func() error {
		return errors.Join(s.server.Kill(ctx, "power"), s.server.Start(ctx))
	})
	if err != nil {
		cmd.Process.Kill() // it may have ended
	}
	if werr := cmd.Wait(); err != nil || werr != nil {
		return fmt.Errorf("demo: the download did not go on: %w: %s", errors.Join(err, werr), strings.TrimSpace(errOut.String()))
	}
	s.tell("the download went on and is whole: %.1f s in all, with a pause of %.1f s from the power cut on", whole.Seconds(), pause.Seconds())
	if err := s.server.WaitReady(ctx); err != nil {
		return err
	}
	if err := s.server.WaitNodes(ctx, s.server.Name, s.first.Name, s.second.Name); err != nil {
		return err
	}
	s.tell("the server is ready again, and all nodes are")
	return s.bothWays(ctx)
}

// readThrough reads n bytes, calls cut after half of them, and returns how long all took, and how long after the beginning
// of cut the longest gap between two bytes was over.
func readThrough(r io.Reader, n int64, cut func() error) (whole, pause time.Duration, err error) {
	begun := time.Now()
	if _, err := io.CopyN(io.Discard, r, n/2); err != nil {
		return 0, 0, fmt.Errorf("the first half: %w", err)
	}
	off := time.Now()
	if err := cut(); err != nil {
		return 0, 0, err
	}
	var longest time.Duration
	got, last, block := n/2, time.Now(), make([]byte, 64<<10)
	for {
		m, err := r.Read(block)
		now := time.Now()
		if gap := now.Sub(last); m > 0 && gap > longest {
			longest, pause = gap, now.Sub(off)
		}
		got, last = got+int64(m), now
		switch {
		case errors.Is(err, io.EOF) && got == n && longest < 100*time.Millisecond:
			return 0, 0, errors.New("the power cut interrupted nothing")
		case errors.Is(err, io.EOF) && got == n:
			return now.Sub(begun), pause, nil
		case err != nil:
			return 0, 0, fmt.Errorf("%d of %d bytes arrived: %w", got, n, err)
		}
	}
}

// workerOff takes the power of the other worker and gives it back.
func (s *shelf) workerOff(ctx context.Context) error {
	s.tell("the power of worker %s is cut", s.second.Name)
	if err := s.second.Kill(ctx, "power"); err != nil {
		return err
	}
	err := await.Until(ctx, func() error {
		if err := s.answers(ctx, s.second.Name); err == nil {
			return errors.New("demo: a pod without power answers")
		}
		return s.answers(ctx, s.server.Name)
	})
	if err != nil {
		return err
	}
	s.tell("its pod does not answer, those of the other nodes do; the power comes back")
	if err := s.second.Start(ctx); err != nil {
		return err
	}
	if err := s.second.WaitReady(ctx); err != nil {
		return err
	}
	if err := s.server.WaitNodes(ctx, s.second.Name); err != nil {
		return err
	}
	if err := await.Until(ctx, func() error { return s.answers(ctx, s.second.Name) }); err != nil {
		return err
	}
	s.tell("its pod answers again")
	return s.runs(ctx, map[string]int{"a": 1, "a1": 1, "a2": 1})
}

// answers asks the replica on a node, from near.
func (s *shelf) answers(ctx context.Context, node string) error {
	pods, err := s.replicas(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if at < 0 {
		return fmt.Errorf("demo: no replica is on %s", node)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	out, err := s.server.Kubectl(ctx, "exec", "-n", shelfNamespace, "near", "--", "web", "show", "http://"+net.JoinHostPort(pods[at].Status.PodIP, "8080")+"/")
	if err == nil && !strings.Contains(out, pods[at].Name) {
		err = fmt.Errorf("demo: %q does not name %s", out, pods[at].Name)
	}
	return err
}

// workerRemoved removes it; its replica moves, and the device says so.
func (s *shelf) workerRemoved(ctx context.Context) error {
	s.tell("worker %s is removed", s.second.Name)
	if err := show(ctx, s.server, "rivulet", "nodes", "remove", s.second.Name, "--yes"); err != nil {
		return err
	}
	err := await.Until(ctx, func() error {
		pods, err := s.replicas(ctx)
		if err != nil {
			return err
		}
		if where := mainjob.Where(pods); len(pods) != 3 || where["a"]+where["a1"] != 3 {
			return fmt.Errorf("demo: the replicas run on %v, want three on a and a1", where)
		}
		out, err := s.server.Kubectl(ctx, "get", "nodes", "-l", "rivulet.dev/worker", "-o", "jsonpath={.items[*].metadata.name}")
		if err == nil && out != s.first.Name {
			err = fmt.Errorf("demo: the workers are %q, want %s", out, s.first.Name)
		}
		return err
	})
	if err != nil {
		return err
	}
	s.tell("its replica runs on another node; waiting until %s has noticed", s.second.Name)
	err = await.Until(ctx, func() error {
		out, err := s.second.Run(ctx, "rivulet", "status", "-o", "json") // not ready: it ends with 3
		if !strings.Contains(out, `"removed":true`) {
			return errors.Join(fmt.Errorf("demo: %s does not know that it was removed", s.second.Name), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return show(ctx, s.server, "rivulet", "nodes")
}

const afterShelf = `Look around:
    bin/rivulet-lab exec a -- rivulet nodes
    bin/rivulet-lab kubectl a -- get pods -A -o wide
    bin/rivulet-lab exec a1 -- rivulet status
    bin/rivulet-lab exec a2 -- rivulet leave --yes       a cluster of its own again
    bin/rivulet-lab kill a power; bin/rivulet-lab start a
Stop:
    make demo-shelf-down
`
