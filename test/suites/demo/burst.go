package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"rivulet/test/harness/await"
	"rivulet/test/harness/campus"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
)

const (
	campusAddress = "10.77.0.13" // of device c
	campusNode    = "burst-campus"
	atCampus      = 4 // replicas that neither home nor the peer has room for
)

// burstLab is the lab of the story, but for its folder and binary. The devices boot
// without their cables: the campus is a Rivulet until it is made one, and would be a
// peer as well.
func burstLab() lab.Options {
	room := []string{"RIVULET_RESERVE_CPU=" + mainjob.ReserveCPU()}
	return lab.Options{Devices: 3, Unplugged: true, Env: map[string][]string{"a": room, "b": room}}
}

// makeBurst makes that lab, which stays, and plays the story on it.
func makeBurst(ctx context.Context, dir, binary string, tell func(string, ...any)) error {
	o := burstLab()
	o.Dir, o.Binary, o.Tell = dir, binary, tell
	l, err := lab.Up(ctx, o)
	if err != nil {
		return err
	}
	return playBurst(ctx, l, tell)
}

// playBurst plays the order home, peer, campus.
func playBurst(ctx context.Context, l *lab.Lab, tell func(string, ...any)) error {
	s, c, err := setBurst(ctx, l, tell)
	if err != nil {
		return err
	}
	if err := join(ctx, s, c, tell); err != nil {
		return err
	}
	pods, err := fill(ctx, s, tell)
	if err != nil {
		return err
	}
	return proveBurst(ctx, s, c, pods)
}

// setBurst makes of three devices home, a peer of its own LAN, and a campus.
func setBurst(ctx context.Context, l *lab.Lab, tell func(string, ...any)) (*mainjob.Story, *campus.Campus, error) {
	devices, err := l.Devices()
	if err != nil {
		return nil, nil, err
	}
	tell("waiting for k3s on each device")
	for _, d := range devices {
		if err := d.WaitReady(ctx); err != nil {
			return nil, nil, err
		}
	}
	if err := mainjob.ImportImage(ctx, devices); err != nil {
		return nil, nil, err
	}
	tell("c becomes the campus: the pinned k3s, started bare, without Rivulet")
	c, err := campus.Become(ctx, devices[2], campusAddress)
	if err != nil {
		return nil, nil, err
	}
	if _, err := devices[0].Run(ctx, campus.Shut(campusAddress)...); err != nil {
		return nil, nil, err
	}
	tell("cables in: a finds b; between a and the campus a firewall lets nobody in and no UDP out")
	if err := l.Heal(); err != nil {
		return nil, nil, err
	}
	if err := devices[0].WaitPeered(ctx, 1); err != nil {
		return nil, nil, err
	}
	return &mainjob.Story{Home: devices[0], Tell: tell, User: 1000}, c, nil
}

// join is what a student and an administrator do.
func join(ctx context.Context, s *mainjob.Story, c *campus.Campus, tell func(string, ...any)) error {
	tell("a student has a kubeconfig of the campus and adds it on a; an administrator grants the Role that this prints, for one namespace")
	home := s.Home.(*lab.Device)
	joined, err := c.Join(ctx, home, "--limits", "cpu=1,memory=512Mi,pods=8", "--network", "auto", "--image", "shell="+mainjob.Image)
	if err != nil {
		return err
	}
	fmt.Printf("\na$ %s\n%s\n\n(granted)\na$ %s\n%s\n", joined.Command, head(joined.Denied), joined.Command, joined.Added)
	tell("waiting for the gateway pod, which is reached through the campus's API server")
	return await.Until(ctx, func() error {
		if _, err := home.Run(ctx, "rivulet", "burst", "status", "campus"); err != nil {
			return err
		}
		return nodeReady(ctx, s, campusNode)
	})
}

// head is the beginning of what is long.
func head(text string) string {
	const most = 12
	lines := strings.Split(text, "\n")
	if len(lines) <= most {
		return text
	}
	return strings.Join(append(lines[:most:most], fmt.Sprintf("  … %d more, and the Role that has all of them", len(lines)-most)), "\n")
}

func nodeReady(ctx context.Context, s *mainjob.Story, node string) error {
	out, err := s.Kubectl(ctx, "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
	if err != nil || !strings.Contains(out, `"status":"True"`) {
		return errors.Join(fmt.Errorf("demo: node %s: %s", node, out), err)
	}
	return nil
}

// fill has more and more replicas, and looks each time that nobody is asked before
// those that come first are full.
func fill(ctx context.Context, s *mainjob.Story, tell func(string, ...any)) ([]corev1.Pod, error) {
	peer, err := fits(ctx, s, "b")
	if err != nil {
		return nil, err
	}
	home := mainjob.Replicas / 2 // what ReserveCPU leaves
	tell("home has room for %d replicas, the peer b lends room for %d", home, peer)
	want := map[string]int{}
	s.First = home
	var pods []corev1.Pod
	for i, step := range []struct {
		node string
		more int
		told string
	}{{"a", home, "home is full"}, {"b", peer, "the peer is full, too"}, {campusNode, atCampus, "what was too much for both runs at the campus"}} {
		want[step.node] = step.more
		n := 0
		for _, some := range want {
			n += some
		}
		if i == 0 {
			err = s.Deploy(ctx)
		} else {
			err = s.Scale(ctx, n)
		}
		if err != nil {
			return nil, err
		}
		if pods, err = s.WaitReady(ctx, n); err != nil {
			return nil, err
		}
		where := mainjob.Where(pods)
		for node, some := range want {
			if where[node] != some {
				return nil, fmt.Errorf("demo: %d replicas run on %v, want %v", n, where, want)
			}
		}
		tell("%s: %s", step.told, counted(where))
	}
	return pods, nil
}

// fits is how many replicas a virtual node has room for.
func fits(ctx context.Context, s *mainjob.Story, node string) (int, error) {
	out, err := s.Kubectl(ctx, "get", "node", node, "-o", "jsonpath={.status.allocatable.cpu}")
	if err != nil {
		return 0, err
	}
	cpu, err := resource.ParseQuantity(strings.TrimSpace(out))
	if err != nil {
		return 0, fmt.Errorf("demo: room of %s: %w", node, err)
	}
	each := resource.MustParse(mainjob.CPU)
	return int(cpu.MilliValue() / each.MilliValue()), nil
}

func counted(where map[string]int) string {
	var parts []string
	for node, n := range where {
		parts = append(parts, fmt.Sprintf("%d on %s", n, node))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// proveBurst asks from home and from the campus, and prints who answered.
func proveBurst(ctx context.Context, s *mainjob.Story, c *campus.Campus, pods []corev1.Pod) error {
	at := map[string][]corev1.Pod{}
	for _, p := range pods {
		at[p.Spec.NodeName] = append(at[p.Spec.NodeName], p)
	}
	near, far := at["a"][0], at[campusNode][0]
	fromHome, err := s.AskAll(ctx, near.Name, mainjob.App, pods)
	if err != nil {
		return err
	}
	// From there the Service leads to home and to the campus (docs/design/burst-network.md).
	fromThere, err := s.AskAll(ctx, far.Name, mainjob.App, append(slices.Clone(at["a"]), at[campusNode]...))
	if err != nil {
		return err
	}
	fmt.Print("\nWhere the replicas run, and who answered when the Service was asked by its name:\n\n")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "POD\tNODE\tADDRESS\tANSWERED %s (home)\tANSWERED %s (campus)\n", near.Name, far.Name)
	for _, p := range pods {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\n", p.Name, p.Spec.NodeName, p.Status.PodIP, fromHome[p.Name], fromThere[p.Name])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println("(The Service as the campus has it leads to home and to the campus, not to the peer.)")
	for _, one := range []struct {
		what string
		on   func(context.Context, ...string) (string, error)
		args []string
	}{
		{"a log line of " + far.Name, s.Kubectl, []string{"logs", "-n", mainjob.Namespace, far.Name, "--tail", "1"}},
		{"an exec in it (host name, user, the address it has there)", s.Kubectl, []string{"exec", "-n", mainjob.Namespace, far.Name, "--", "sh", "-c", "echo $(hostname; id -u; ip -4 -o addr show eth0)"}},
		{"what the campus's administrator sees in the student's namespace", c.Kubectl, []string{"get", "pods", "-n", campus.Namespace}},
		{"how the campus is reached", func(ctx context.Context, args ...string) (string, error) { return s.Home.Run(ctx, args...) }, []string{"rivulet", "burst", "status", "campus"}},
	} {
		out, err := one.on(ctx, one.args...)
		if err != nil {
			return err
		}
		fmt.Printf("\n%s:\n    %s\n", one.what, strings.ReplaceAll(strings.TrimSpace(out), "\n", "\n    "))
	}
	fmt.Printf("\n%d replicas: %s; no port is open on either side.\n\n", len(pods), counted(mainjob.Where(pods)))
	return nil
}

const afterBurst = `Look around:
    bin/rivulet-lab exec a -- rivulet burst status campus
    bin/rivulet-lab kubectl a -- get pods -n lab -o wide
    bin/rivulet-lab kubectl c -- get all -n student42       what the campus sees of it
    bin/rivulet-lab cut a c; bin/rivulet-lab heal           the campus is away
    bin/rivulet-lab exec a -- rivulet burst remove campus   nothing is left there
Stop:
    make demo-burst-down
`
