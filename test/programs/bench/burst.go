package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/campus"
	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
)

const (
	campusAddress = "10.77.0.13" // of device c
	campusNode    = "burst-campus"
	burstRuns     = 5 // rounds
	burstRounds   = 3
	burstTrips    = 300
	burstSettles  = 500 * time.Millisecond
	burstFor      = 2 * time.Second
	// thereBytes and thereTrips are what a pod asks of home in one go.
	thereBytes, thereTrips = 64 << 20, 200
)

// path is one way between a pod that asks and one that answers.
type path struct {
	name             string
	trip, rate       figures.Samples // home asks: ms for a request on a kept connection, bit/s
	thereTrip, there figures.Samples // the pod asks home: ms for a connection and a request, bit/s
}

// burst: home and a campus that runs no Rivulet, on which pods are reached through the
// gateway there, by UDP and by the stream through the campus's API server; beside that
// what kubectl port-forward and the tunnel to a peer do.
func (b *bench) burst(ctx context.Context, s *figures.Section) error {
	s.Title = "Burst: home ↔ a campus that runs no Rivulet"
	s.How = fmt.Sprintf("Home a, peer b, and the pinned k3s started bare as campus c, in a namespace that is `restricted`, with quota. Requests: %d GETs of 50 bytes on one kept connection from home's network to a pod's address at home, p50; throughput: one GET for %v after %v. From there: `web get -n %d` (a connection each) and `web count` of %d MB in the pod, of a Service at home. kubectl port-forward is that of the same user to the same pod. %d rounds, rotated. Running: a Deployment of one pod, created at home for the campus's virtual node or in the campus's namespace, %d rounds in turn. All devices, pods and load share the cores.", burstTrips, burstFor, burstSettles, thereTrips, thereBytes>>20, burstRounds, burstRuns)
	return b.stage.Lab(ctx, b.stage.Binary(), 3, nil, func(l *lab.Lab, ds []*device.Device) error {
		c, err := b.campus(ctx, l, ds)
		if err != nil {
			return err
		}
		if err := b.burstPods(ctx, s, ds[0], ds[2]); err != nil {
			return err
		}
		return b.burstPaths(ctx, s, ds[0], ds[1], c)
	}, func(o *lab.Options) { o.Unplugged = true }) // c is a Rivulet until it is made a campus
}

// campus makes one of c, and gives it to a.
func (b *bench) campus(ctx context.Context, l *lab.Lab, ds []*device.Device) (*campus.Campus, error) {
	for _, d := range ds {
		if _, err := d.WaitReady(ctx); err != nil {
			return nil, err
		}
		if _, err := d.Run(ctx, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", "/opt/rivulet/demo-web.tar"); err != nil {
			return nil, err
		}
	}
	c, err := campus.Become(ctx, ds[2].Device, campusAddress)
	if err != nil {
		return nil, err
	}
	if err := l.Heal(); err != nil {
		return nil, err
	}
	if _, err := ds[0].WaitNode(ctx, 1, device.Virtual); err != nil {
		return nil, err
	}
	if _, err := c.Join(ctx, ds[0].Device, "--limits", "cpu=1,memory=512Mi,pods=8", "--network", "auto", "--image", "shell="+device.Image); err != nil {
		return nil, err
	}
	b.tell("burst: the campus is added")
	_, err = ds[0].WaitNode(ctx, 2, device.Virtual)
	return c, err
}

// asUser is what the campus's namespace asks of a pod, spelt out.
func asUser(p *corev1.PodSpec) {
	p.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	for i := range p.Containers {
		p.Containers[i].SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To[int64](1000), AllowPrivilegeEscalation: ptr.To(false),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	}
}

// burstPods: created at home for the campus, or there by its user.
func (b *bench) burstPods(ctx context.Context, s *figures.Section, home, there *device.Device) error {
	h, err := home.Client()
	if err != nil {
		return err
	}
	t, err := there.Client()
	if err != nil {
		return err
	}
	places := []where{
		{name: "created at home", device: home, client: h, namespace: podsNamespace, spec: asUser, selector: map[string]string{corev1.LabelHostname: campusNode}},
		{name: "created there", device: there, client: t, namespace: campus.Namespace, spec: asUser},
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: podsNamespace, Labels: map[string]string{policy.NamespaceLabel: string(policy.Remote)}}}
	if _, err := h.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	took := make([]figures.Samples, len(places))
	defer func() {
		ratio := figures.Samples{took[0].Median() / took[1].Median()}
		s.Rows = append(s.Rows,
			figures.Row{What: "pod Running, created at home", Figure: took[0].Show("%.2f", "s"), Ratio: ratio},
			figures.Row{What: "pod Running, created there by kubectl", Figure: took[1].Show("%.2f", "s")})
	}()
	for i := range burstRuns + 1 {
		for j := range places {
			at := (i + j) % len(places)
			one, err := deploy(ctx, places[at], 1)
			if err != nil {
				return err
			}
			for _, p := range places { // the gateway stays
				if err := noneOf(ctx, p, "app=web,!rivulet.dev/part"); err != nil {
					return err
				}
				if err := noneOf(ctx, p, "away.rivulet.dev/app=web"); err != nil {
					return err
				}
			}
			if i > 0 { // the first warms up
				took[at] = append(took[at], one)
				b.tell("burst, round %d: %s: %.2f s", i, places[at].name, one)
			}
		}
	}
	return nil
}

// noneOf waits until no pod with these labels is left there, nor what deploy created.
func noneOf(ctx context.Context, p where, selector string) error {
	return eventually(ctx, "pods "+selector+" are gone", func(ctx context.Context) error {
		if _, err := p.client.AppsV1().Deployments(p.in()).Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the Deployment is there still"), err)
		}
		left, err := p.client.CoreV1().Pods(p.in()).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d are left", len(left.Items))
		}
		return err
	})
}

// eventually looks until there is no error.
func eventually(ctx context.Context, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := await.Until(ctx, func() error { return f(ctx) }); err != nil {
		return fmt.Errorf("bench: %s: %w", what, err)
	}
	return nil
}

// burstPaths compares the ways.
func (b *bench) burstPaths(ctx context.Context, s *figures.Section, home, peer *device.Device, c *campus.Campus) error {
	h, err := home.Client()
	if err != nil {
		return err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: serviceNamespace, Labels: map[string]string{policy.NamespaceLabel: string(policy.Any)}}}
	if _, err := h.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	address := map[string]string{}
	for app, node := range map[string]string{"near": home.Name, "peer": peer.Name, "far": campusNode} {
		at := where{device: home, client: h, spec: asUser}
		if err := serve(ctx, at, app, map[string]string{corev1.LabelHostname: node}); err != nil {
			return err
		}
		if err := eventually(ctx, "the address of "+app, func(ctx context.Context) error {
			p, err := h.CoreV1().Pods(serviceNamespace).Get(ctx, app, metav1.GetOptions{})
			if err == nil && p.Status.PodIP == "" {
				err = errors.New("it has none")
			}
			if err == nil {
				address[app] = net.JoinHostPort(p.Status.PodIP, "8080")
			}
			return err
		}); err != nil {
			return err
		}
	}
	near := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "near"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "near"}, Ports: []corev1.ServicePort{{Port: 8080}}}}
	if _, err := h.CoreV1().Services(serviceNamespace).Create(ctx, near, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	out, err := c.Kubectl(ctx, "get", "pods", "-n", campus.Namespace, "-l", "away.rivulet.dev/app=far", "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return err
	}
	forwarded, end, err := forward(ctx, home, strings.TrimSpace(out))
	if err != nil {
		return err
	}
	defer end()
	lan, udp, stream, port := &path{name: "the tunnel to a peer"}, &path{name: "the campus, UDP"}, &path{name: "the campus, stream"}, &path{name: "kubectl port-forward"}
	defer func() { s.Rows = append(s.Rows, burstRows(lan, udp, stream, port)...) }()
	for i := range burstRounds {
		for j := range 4 {
			switch (i + j) % 4 {
			case 0:
				err = lan.measure(ctx, home, address["peer"], "peer")
			case 1:
				if err = transport(ctx, home, "udp "); err == nil {
					err = udp.measure(ctx, home, address["far"], "far")
				}
			case 2:
				if err = transport(ctx, home, "stream"); err == nil {
					err = stream.measure(ctx, home, address["far"], "far")
				}
			case 3:
				err = port.measure(ctx, home, forwarded, "")
			}
			if err != nil {
				return err
			}
		}
		for _, p := range []*path{lan, udp, stream, port} {
			b.tell("burst, round %d: %s: %.2f ms, %.0f Mbit/s", i+1, p.name, p.trip[i], p.rate[i]/1e6)
		}
	}
	return nil
}

// forward is kubectl's port-forward, by the user of the campus on home; it returns the
// address and what ends it.
func forward(ctx context.Context, home *device.Device, pod string) (string, func(), error) {
	const address = "127.0.0.1:18080"
	cmd, err := home.Command(ctx, "rivulet", "kubectl", "--kubeconfig", campus.UserKubeconfig, "port-forward", "pod/"+pod, "18080:8080")
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("bench: %w", err)
	}
	end := func() { end(cmd) }
	err = eventually(ctx, "kubectl port-forward", func(ctx context.Context) error {
		conn, err := home.Dial(ctx, "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		end()
	}
	return address, end, err
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it ends by itself only when the pod does
	_ = cmd.Wait()
}

// transport has home reach the gateway by that: with a firewall as of a router that
// translates addresses, or without one.
func transport(ctx context.Context, home *device.Device, want string) error {
	_, shut := home.Run(ctx, "nft", "list", "table", "inet", "nat_box")
	var err error
	switch {
	case want == "stream" && shut != nil:
		_, err = home.Run(ctx, campus.Shut(campusAddress)...)
	case want != "stream" && shut == nil:
		_, err = home.Run(ctx, campus.Open()...)
	}
	if err != nil {
		return err
	}
	return eventually(ctx, "the gateway is reached by "+want, func(ctx context.Context) error {
		out, err := home.Run(ctx, "rivulet", "burst", "status", "campus", "-o", "json")
		var st struct {
			Gateway struct {
				Ready     bool
				Transport string
			}
		}
		if jerr := json.Unmarshal([]byte(out), &st); jerr != nil {
			return errors.Join(err, jerr)
		}
		if !st.Gateway.Ready || !strings.HasPrefix(st.Gateway.Transport, want) {
			return fmt.Errorf("it is by %q", st.Gateway.Transport)
		}
		return nil
	})
}

// measure adds a round. With pod, that pod of home asks home's Service near, too.
func (p *path) measure(ctx context.Context, home *device.Device, address, pod string) error {
	client := &http.Client{Transport: &http.Transport{DialContext: home.Dial, MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	var trips figures.Samples
	for i := range burstTrips + 20 {
		begun := time.Now()
		if err := get(ctx, client, "http://"+address+"/"); err != nil {
			return fmt.Errorf("bench: %s: %w", p.name, err)
		}
		if i >= 20 { // the first open the connection
			trips = append(trips, time.Since(begun).Seconds()*1e3)
		}
	}
	rate, err := download(ctx, client, "http://"+address+"/bytes?n="+strconv.Itoa(1<<40))
	if err != nil {
		return fmt.Errorf("bench: %s: %w", p.name, err)
	}
	p.trip, p.rate = append(p.trip, trips.Median()), append(p.rate, rate)
	if pod == "" {
		return nil
	}
	took, err := inPod(ctx, home, pod, fmt.Sprintf("web get -n %d http://near:8080/", thereTrips))
	if err != nil {
		return err
	}
	p.thereTrip = append(p.thereTrip, took/thereTrips*1e3)
	if took, err = inPod(ctx, home, pod, fmt.Sprintf("web count http://near:8080/bytes?n=%d", thereBytes)); err != nil {
		return err
	}
	p.there = append(p.there, thereBytes*8/took)
	return nil
}

// get asks once, to the end of the answer.
func get(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// download returns the bits a second of one answer that does not end.
func download(ctx context.Context, client *http.Client, url string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, burstSettles+burstFor+15*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	begun, buf := time.Now(), make([]byte, 128<<10)
	var from time.Time
	var n int
	for {
		got, err := answer.Body.Read(buf)
		if err != nil {
			return 0, err
		}
		switch now := time.Now(); {
		case from.IsZero() && now.Sub(begun) >= burstSettles:
			from = now
		case from.IsZero():
		case now.Sub(from) >= burstFor:
			return float64(n+got) * 8 / now.Sub(from).Seconds(), nil
		default:
			n += got
		}
	}
}

// inPod runs something in a pod of home and returns how long it took there, in seconds.
func inPod(ctx context.Context, home *device.Device, pod, what string) (took float64, err error) {
	err = eventually(ctx, what, func(ctx context.Context) error {
		out, err := home.Kubectl(ctx, "exec", "-n", serviceNamespace, pod, "--", "sh", "-ec", "cat /proc/uptime; "+what+" >/dev/null; cat /proc/uptime")
		if err != nil {
			return err
		}
		f := strings.Fields(out) // up, idle, up, idle
		if len(f) != 4 {
			return fmt.Errorf("answer %q", out)
		}
		from, err := strconv.ParseFloat(f[0], 64)
		if err != nil {
			return err
		}
		to, err := strconv.ParseFloat(f[2], 64)
		took = max(to-from, 0.01) // the clock's tick
		return err
	})
	return took, err
}

// burstRows has a row for each figure, with its ratio to the tunnel to a peer, and one
// for the ratio to port-forward.
func burstRows(lan, udp, stream, port *path) (rows []figures.Row) {
	for _, f := range []struct {
		what         string
		of           func(*path) figures.Samples
		scale        float64
		format, unit string
	}{
		{"request, home asks", func(p *path) figures.Samples { return p.trip }, 1, "%.2f", "ms"},
		{"throughput to home", func(p *path) figures.Samples { return p.rate }, 1e-6, "%.0f", "Mbit/s"},
		{"connection and request, the pod asks home", func(p *path) figures.Samples { return p.thereTrip }, 1, "%.2f", "ms"},
		{"throughput from home", func(p *path) figures.Samples { return p.there }, 1e-6, "%.0f", "Mbit/s"},
	} {
		for _, p := range []*path{lan, port, udp, stream} {
			if len(f.of(p)) == 0 {
				continue
			}
			row := figures.Row{What: f.what + ": " + p.name, Figure: scaled(f.of(p), f.scale).Show(f.format, f.unit)}
			if p != lan {
				row.What += " (ratio: to the tunnel to a peer)"
				row.Ratio = f.of(p).Over(f.of(lan))
			}
			rows = append(rows, row)
			if (p == udp || p == stream) && len(f.of(port)) > 0 {
				rows = append(rows, figures.Row{What: f.what + ": " + p.name + " (ratio: to kubectl port-forward)", Figure: "", Ratio: f.of(p).Over(f.of(port))})
			}
		}
	}
	return rows
}
