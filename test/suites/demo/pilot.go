package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/campus"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
	"rivulet/test/harness/tree"
)

const (
	pilotClusters = "a=1+2,b=1+1,c=1"
	pilotLimit    = 20 * time.Minute
	pilotLasting  = time.Minute  // of a load with a fault in it
	pilotTarget   = 0.001        // the share of requests that may fail then, of a fault that is not announced
	pilotCampus   = "10.77.0.16" // of device c, the sixth
	shopNamespace = "shop"
	shopPods      = 16
	shopAway      = 9
	shopStores    = 2
	shopAtHome    = 2 // services of two pods that stay there
	workNamespace = "institute"
)

// What each cluster has for pods, in thousandths of a core for each device, and what it lends. The shop's pods request 100 each, its
// two stores 200. Home has room for all of them until its own work takes 1500; b lends half of its 1200.
const (
	roomOfHome, roomOfB, workEach, works = 800, 600, 300, 5
	shareOfHome, shareOfB                = "10%", "50%"
	limitsOfCampus                       = "cpu=1,memory=768Mi,pods=9"
)

// pilot is a shop on three clusters: home a of three devices, its peer b of two, and campus c, which runs no Rivulet.
type pilot struct {
	lab             *lab.Lab
	home, peer      *lab.Device // the servers of a and b
	devices         []*lab.Device
	shop, prices    string // where users open it
	tell            func(string, ...any)
	lasting         time.Duration // of one load with a fault in it
	target          float64       // the share of requests that may fail of a fault that is not announced
	results         []result
	ordersConfirmed int
}

// pilotLab is its lab, but for folder and binary. The devices boot without cables, as the campus is a Rivulet until it is made one.
func pilotLab() (lab.Options, error) {
	clusters, err := lab.ParseClusters(pilotClusters)
	env := map[string][]string{}
	for _, c := range clusters {
		room, share := roomOfHome, shareOfHome
		if c.Server == "b" {
			room, share = roomOfB, shareOfB
		}
		for _, d := range c.Devices() {
			env[d] = []string{fmt.Sprintf("RIVULET_RESERVE_CPU=%dm", runtime.NumCPU()*1000-room), "RIVULET_SHARE_CPU=" + share, "RIVULET_METRICS=lan"}
		}
	}
	return lab.Options{Clusters: clusters, Unplugged: true, Env: env}, err
}

// makePilot makes the lab, which stays, and plays the story on it.
func makePilot(ctx context.Context, dir, binary string, lasting time.Duration, target float64, tell func(string, ...any)) error {
	o, err := pilotLab()
	if err != nil {
		return err
	}
	o.Dir, o.Binary, o.Tell = dir, binary, tell
	l, err := lab.Up(ctx, o)
	if err != nil {
		return err
	}
	p := &pilot{lab: l, tell: tell, lasting: lasting, target: target}
	if err := p.clusters(ctx, o.Clusters); err != nil {
		return err
	}
	return p.play(ctx)
}

// play is the story on clusters that are there.
func (p *pilot) play(ctx context.Context) error {
	for _, part := range []func(context.Context) error{p.allAtHome, p.spread, p.monitor, p.faults, p.ordersKept, p.figures, p.missed} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// clusters makes of six devices three clusters: a and b are peers, a sends pods to c, b and c have nothing to do with each other.
func (p *pilot) clusters(ctx context.Context, clusters []lab.Cluster) error {
	if err := p.find(); err != nil {
		return err
	}
	p.tell("waiting for k3s on each of six devices")
	for _, d := range p.devices {
		if err := d.WaitReady(ctx); err != nil {
			return err
		}
	}
	if err := p.images(ctx); err != nil {
		return err
	}
	p.tell("c becomes the campus: the pinned k3s, started bare, without Rivulet; then all cables in")
	c, err := campus.Become(ctx, p.devices[len(p.devices)-1], pilotCampus)
	if err != nil {
		return err
	}
	if err := p.lab.Heal(); err != nil {
		return err
	}
	if err := p.lab.Join(ctx, clusters[:2]); err != nil {
		return err
	}
	if err := p.home.WaitPeers(ctx, p.peer.Name); err != nil {
		return err
	}
	p.tell("a and b are peers: a lends b %s of its CPU, b lends a %s; a has an account at c for one namespace, of %s", shareOfHome, shareOfB, limitsOfCampus)
	if _, err := c.Join(ctx, p.home, "--limits", limitsOfCampus, "--network", "auto", "--image", "shell="+mainjob.Image); err != nil {
		return err
	}
	return await.Until(ctx, func() error { return nodeReady(ctx, &mainjob.Story{Home: p.home}, campusNode) })
}

func (p *pilot) find() (err error) {
	if p.devices, err = p.lab.Devices(); err != nil {
		return err
	}
	if p.home, err = p.lab.Device("a"); err != nil {
		return err
	}
	p.peer, err = p.lab.Device("b")
	return err
}

// images puts the shop's program into all devices, and its stores into those of home.
func (p *pilot) images(ctx context.Context) error {
	p.tell("the images go into the devices, as there is no registry here")
	for _, d := range p.devices {
		files := []string{mainjob.ImageFile, "/opt/rivulet/shop.tar"}
		if strings.HasPrefix(d.Name, "a") {
			files = append(files, "/opt/rivulet/shop-stores.tar")
		}
		for _, f := range files {
			if _, err := d.Run(ctx, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", f); err != nil {
				return err
			}
		}
	}
	return nil
}

// allAtHome deploys the shop on an empty home, and loads it.
func (p *pilot) allAtHome(ctx context.Context) error {
	p.tell("kubectl apply -k examples/shop: ten Services, %d pods", shopPods)
	if _, err := p.home.Kubectl(ctx, "apply", "-k", "/host"+tree.Path("examples", "shop")); err != nil {
		return err
	}
	pods, err := p.ready(ctx, shopPods)
	if err != nil {
		return err
	}
	if away := p.away(pods); away != 0 {
		return fmt.Errorf("demo: home had room for all of the shop, and %d pods are away: %v", away, mainjob.Where(pods))
	}
	if err := p.addresses(ctx); err != nil {
		return err
	}
	return p.measure(ctx, fault{name: "all at home", lasting: p.lasting / 2})
}

// addresses finds where the LAN reaches the shop.
func (p *pilot) addresses(ctx context.Context) error {
	return await.Until(ctx, func() error {
		out, err := p.home.Kubectl(ctx, "get", "service", "-n", shopNamespace, "storefront", "prices", "-o", `jsonpath={range .items[*]}{.status.loadBalancer.ingress[0].ip} {end}`)
		if err != nil {
			return err
		}
		at := strings.Fields(out)
		if len(at) != 2 {
			return fmt.Errorf("demo: the shop has no address on the LAN yet: %q", out)
		}
		for _, a := range at {
			if _, err := netip.ParseAddr(a); err != nil {
				return fmt.Errorf("demo: %w", err)
			}
		}
		p.shop, p.prices = "http://"+at[0], "ws://"+at[1]+":8080/prices"
		return nil
	})
}

// spread gives home work of its own, so that the shop has to go elsewhere.
func (p *pilot) spread(ctx context.Context) error {
	p.tell("home gets work of its own: %d pods of %dm. The shop's services are stopped, and started again when it runs", works, workEach)
	if _, err := p.home.Kubectl(ctx, "scale", "deployment", "--all", "-n", shopNamespace, "--replicas=0"); err != nil {
		return err
	}
	if _, err := p.ready(ctx, shopStores); err != nil {
		return err
	}
	work := fmt.Sprintf(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%[1]q}},
{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"work","namespace":%[1]q},"spec":{"replicas":%[2]d,"selector":{"matchLabels":{"app":"work"}},
 "template":{"metadata":{"labels":{"app":"work"}},"spec":{"containers":[{"name":"work","image":%[3]q,"resources":{"requests":{"cpu":"%[4]dm","memory":"8Mi"}}}]}}}}]}`,
		workNamespace, works, mainjob.Image, workEach)
	if _, err := p.home.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", work); err != nil {
		return err
	}
	if _, err := p.home.Kubectl(ctx, "rollout", "status", "-n", workNamespace, "deployment/work", "--timeout=2m"); err != nil {
		return err
	}
	// What has to be at home comes first.
	if _, err := p.home.Kubectl(ctx, "scale", "-n", shopNamespace, "deployment/storefront", "deployment/checkout", "--replicas=2"); err != nil {
		return err
	}
	if _, err := p.ready(ctx, shopStores+2*shopAtHome); err != nil {
		return err
	}
	if _, err := p.home.Kubectl(ctx, "scale", "deployment", "--all", "-n", shopNamespace, "--replicas=2"); err != nil {
		return err
	}
	pods, err := p.ready(ctx, shopPods)
	if err != nil {
		return err
	}
	if away, where := p.away(pods), mainjob.Where(pods); away != shopAway || where["b"] == 0 || where[campusNode] == 0 {
		return fmt.Errorf("demo: %d of %d pods are away, want %d, at b and at the campus: %v", away, shopPods, shopAway, where)
	}
	if err := show(ctx, p.home, "rivulet", "kubectl", "get", "pods", "-n", shopNamespace, "-o", "wide", "--sort-by=.spec.nodeName"); err != nil {
		return err
	}
	return p.measure(ctx, fault{name: fmt.Sprintf("%d of %d away", shopAway, shopPods), lasting: p.lasting / 2})
}

func (p *pilot) pods(ctx context.Context) ([]corev1.Pod, error) {
	out, err := p.home.Kubectl(ctx, "get", "pods", "-n", shopNamespace, "-o", "json")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("demo: kubectl's answer: %w", err)
	}
	return list.Items, nil
}

// ready waits until there are n pods of the shop, all ready.
func (p *pilot) ready(ctx context.Context, n int) (pods []corev1.Pod, err error) {
	last := -1
	err = await.Until(ctx, func() error {
		if pods, err = p.pods(ctx); err != nil {
			return err
		}
		ready, waiting := 0, []string{}
		for i := range pods {
			if pod := &pods[i]; mainjob.Ready(pod) && pod.DeletionTimestamp == nil {
				ready++
			} else {
				waiting = append(waiting, fmt.Sprintf("%s on %q %s %s", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Message))
			}
		}
		if ready != last {
			p.tell("%d of %d pods are ready", ready, n)
			last = ready
		}
		if ready != n || len(pods) != n {
			return fmt.Errorf("demo: %d of %d pods are ready: %s", ready, n, strings.Join(waiting, "; "))
		}
		return nil
	})
	return pods, err
}

// away counts pods that run elsewhere than on home's devices.
func (p *pilot) away(pods []corev1.Pod) (n int) {
	for node, some := range mainjob.Where(pods) {
		if !slices.ContainsFunc(p.devices, func(d *lab.Device) bool { return d.Name == node && strings.HasPrefix(node, "a") }) {
			n += some
		}
	}
	return n
}

// ordersKept compares the orders that users had confirmed with those in the database.
func (p *pilot) ordersKept(ctx context.Context) error {
	out, err := p.home.Kubectl(ctx, "exec", "-n", shopNamespace, "orders-0", "--", "sh", "-c", `PGPASSWORD=$PASSWORD /usr/lib/postgresql/15/bin/psql -h 127.0.0.1 -U shop -Atc 'SELECT count(*) FROM orders' postgres`)
	if err != nil {
		return err
	}
	var kept int
	if _, err := fmt.Sscan(out, &kept); err != nil {
		return errors.Join(fmt.Errorf("demo: the database's answer %q", out), err)
	}
	if kept < p.ordersConfirmed {
		return fmt.Errorf("demo: %d orders were confirmed and %d are in the database", p.ordersConfirmed, kept)
	}
	p.tell("%d orders were confirmed to users, %d are in the database", p.ordersConfirmed, kept)
	return nil
}

const afterPilot = `Look around:
    bin/rivulet-lab kubectl a -- get pods -n shop -o wide
    bin/rivulet-lab exec a -- /opt/rivulet/shop load -shop http://10.77.0.11 -prices ws://10.77.0.11:8080/prices -for 10s
    bin/rivulet-lab exec a -- rivulet status
    bin/rivulet-lab exec a -- curl -s --data-urlencode 'query=sum by (service, node) (rate(shop_request_seconds_count[1m]))' http://127.0.0.1:9090/api/v1/query
    bin/rivulet-lab cut a b; bin/rivulet-lab heal
Stop:
    make demo-pilot-down
`
