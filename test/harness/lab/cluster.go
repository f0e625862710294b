package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Cluster is one server and the devices that join it as workers, by name.
type Cluster struct {
	Server  string
	Workers []string
}

// Devices are the names of all devices of a cluster, the server first.
func (c Cluster) Devices() []string { return append([]string{c.Server}, c.Workers...) }

// A bridge port is named after its device and interface, in the 15 bytes that a link's name may have.
var clusterName = regexp.MustCompile(`^[a-z][a-z0-9]{0,5}$`)

// ParseClusters reads "a=1+2,b=1": the name of each cluster, its servers and its workers. The server has the name of its
// cluster, and its workers have that name and a number: a, a1, a2, b.
func ParseClusters(text string) ([]Cluster, error) {
	var all []Cluster
	taken := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, size, ok := strings.Cut(strings.TrimSpace(part), "=")
		servers, workers, more := strings.Cut(size, "+")
		n, err := strconv.ParseUint(servers, 10, 8)
		m := uint64(0)
		if more && err == nil {
			m, err = strconv.ParseUint(workers, 10, 8)
		}
		switch {
		case !ok || err != nil:
			return nil, fmt.Errorf("lab: cluster %q: write NAME=1 or NAME=1+WORKERS, as a=1+2,b=1", part)
		case !clusterName.MatchString(name):
			return nil, fmt.Errorf("lab: cluster name %q: use a letter and up to five letters and digits, in lower case", name)
		case n != 1:
			return nil, fmt.Errorf("lab: cluster %s has %d servers: one server for each cluster; write %s=1+WORKERS", name, n, name)
		}
		c := Cluster{Server: name}
		for i := range m {
			c.Workers = append(c.Workers, name+strconv.FormatUint(i+1, 10))
		}
		for _, d := range c.Devices() {
			if taken[d] {
				return nil, fmt.Errorf("lab: two devices would be called %s: choose another name for a cluster", d)
			}
			taken[d] = true
		}
		all = append(all, c)
	}
	return all, nil
}

// names are those of the devices to make.
func (o Options) names() (out []string) {
	for _, c := range o.Clusters {
		out = append(out, c.Devices()...)
	}
	if o.Clusters == nil {
		for i := range o.Devices {
			out = append(out, string(rune('a'+i)))
		}
	}
	return out
}

// Join makes the workers of each cluster join its server, and returns when all nodes are Ready.
func (l *Lab) Join(ctx context.Context, clusters []Cluster) error {
	for _, c := range clusters {
		server, err := l.Device(c.Server)
		if err != nil {
			return err
		}
		if err := server.WaitReady(ctx); err != nil {
			return err
		}
		for _, name := range c.Workers {
			worker, err := l.Device(name)
			if err != nil {
				return err
			}
			if err := worker.WaitReady(ctx); err != nil {
				return err
			}
			l.say("%s joins %s", name, c.Server)
			if err := worker.Join(ctx, server); err != nil {
				return err
			}
		}
		if err := server.WaitNodes(ctx, c.Devices()...); err != nil {
			return err
		}
	}
	return nil
}

// Join makes the device, which is ready, a worker of a server's cluster, and returns when it runs as one.
func (d *Device) Join(ctx context.Context, server *Device) error {
	code, err := server.Token(ctx)
	if err == nil {
		_, err = d.Run(ctx, "rivulet", "join", code)
	}
	return err
}

// Token makes one on the device, with which another device can join it.
func (d *Device) Token(ctx context.Context) (string, error) {
	out, err := d.Run(ctx, "rivulet", "token", "create", "-o", "json")
	if err != nil {
		return "", err
	}
	var made struct{ Code string }
	if err := json.Unmarshal([]byte(out), &made); err != nil {
		return "", fmt.Errorf("lab: token of %s: %w", d.Name, err)
	}
	return made.Code, nil
}

// WaitNodes waits until nodes of the device's cluster, which exist, are Ready.
func (d *Device) WaitNodes(ctx context.Context, names ...string) error {
	args := []string{"wait", "--for=condition=Ready", "--timeout=1h"} // or as long as ctx
	for _, n := range names {
		args = append(args, "node/"+n)
	}
	_, err := d.Kubectl(ctx, args...)
	return err
}

// WaitPeers waits until the virtual nodes of these peers are ready.
func (d *Device) WaitPeers(ctx context.Context, names ...string) error {
	return d.wait(ctx, func(st Status) string {
		for _, name := range names {
			if !slices.ContainsFunc(st.VirtualNodes, func(v VirtualNode) bool { return v.Name == name && v.Ready }) {
				return fmt.Sprintf("virtual node %s is not ready; peers %+v", name, st.Peers)
			}
		}
		return ""
	})
}
