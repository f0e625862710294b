package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rivulet/appliance/engine"
	"rivulet/appliance/health"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/fabric"
	"rivulet/fabric/changes"
	"rivulet/fabric/cure"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
)

// Engine is how the engine joins.
func (j *Joined) Engine() *engine.Join {
	if j == nil {
		return nil
	}
	return &engine.Join{Server: fmt.Sprintf("https://%s:%d", j.Address, engine.PortAPI), Token: j.Token}
}

// runWorker keeps the device a worker of its cluster until ctx ends. It calls ready when the engine has all it needs.
func (d *Device) runWorker(ctx context.Context, ready func()) error {
	f := d.Fabric()
	d.serveUpgrades(f)
	servedVolumes{d, d.client}.serve(f.Handle)
	failover{d}.serveStandby(f)
	if d.Copy != nil {
		go failover{d}.followCopy(ctx, f)
	}
	changed, stop := f.Changed()
	defer stop()
	lans, end := d.LANs.Changed()
	defer end()
	j, current, begun := *d.Joined, false, false // current: the server has answered in this run
	again := make(chan struct{}, 1)
	for ctx.Err() == nil {
		if !member(f, j.Server) {
			d.Log.Warn("this device was removed from its cluster", "cluster", j.Cluster)
			d.Restart()
			return nil
		}
		err := f.SetNode(j.Server, "", j.behind())
		if err == nil {
			err = writeKubeconfig(d.State, f, j.Server)
		}
		d.Policies.SetPeers([]netip.Prefix{j.Info.Block})
		if err == nil && !begun && j.Token != "" {
			begun = true
			ready()
		}
		l, _ := f.Link(j.Server)
		if err == nil && l.State == peer.Lost {
			err = cure.Errorf("the server of %s does not answer; pods here go on, and nothing can be changed; see that it is on, and that this device reaches it", j.Cluster)
		}
		d.Health.Report(health.WorkerUnusable, err)
		if l.State == peer.Connected {
			d.reportLAN(ctx, f)
		}
		if l.State != peer.Connected {
			current = false
		} else if !current {
			now, err := fetch(ctx, f, j.Server, request{Name: j.Node, Kubernetes: d.Kubernetes})
			if current = err == nil; current && now != j.Info {
				if j.Token == "" { // of a former server: nothing else reads it before ready
					d.Joined.Token = now.Token
					changes.Poke(again)
				}
				j.Info = now
				err = j.save(d.State)
			}
			if err != nil {
				d.Log.Warn("the cluster's present settings are not known; those of before stay", "err", err)
			}
		}
		pause := time.NewTimer(followEvery)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-again:
		case <-lans:
		case <-pause.C:
		}
		pause.Stop()
	}
	return ctx.Err()
}

// member reports whether the server is still one of this device.
func member(f *fabric.Fabric, server peer.ID) bool {
	for _, r := range f.Nodes() {
		if r.ID == server && r.Trust.How == peer.TrustServer {
			return true
		}
	}
	return false
}

// fetch requests the worker's part from the server.
func fetch(ctx context.Context, f *fabric.Fabric, server peer.ID, q request) (i Info, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, base, err := f.Client(server)
	if err != nil {
		return i, err
	}
	if err := rpc.Call(ctx, client, http.MethodPost, base+infoPath, q, &i); err != nil {
		return i, err
	}
	return i, i.check(server)
}

// check refuses an answer with which this device could not run.
func (i Info) check(server peer.ID) error {
	wide := func(p netip.Prefix) bool { return p.IsValid() && p.Bits() == 16 && p == p.Masked() }
	r := i.Ranges
	if i.Server != server || i.Node == "" || i.Token == "" || !i.Block.IsValid() || !wide(r.Pods) || !wide(r.Services) || !wide(r.Nodes) || !r.Nodes.Contains(i.Address) {
		return errors.New("the server's answer is incomplete; run the same version of rivulet on both devices")
	}
	return nil
}

// writeKubeconfig writes the kubeconfig of this device: the API server behind the server's control port, as this device.
func writeKubeconfig(state string, f *fabric.Fabric, server peer.ID) error {
	l, ok := f.Link(server)
	if !ok {
		return fmt.Errorf("there is no tunnel to the server yet; see: rivulet status")
	}
	cert, key, ca, name, err := f.TLS(server)
	if err != nil {
		return err
	}
	const as = "rivulet"
	c := clientcmdapi.NewConfig()
	c.Clusters[as] = &clientcmdapi.Cluster{Server: "https://" + l.Addr.String() + apiPath, TLSServerName: name, CertificateAuthorityData: ca}
	c.AuthInfos[as] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	c.Contexts[as], c.CurrentContext = &clientcmdapi.Context{Cluster: as, AuthInfo: as}, as
	raw, err := clientcmd.Write(*c)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(paths.Kubeconfig(state)); err == nil && bytes.Equal(have, raw) {
		return nil
	}
	return durable.Write(paths.Kubeconfig(state), raw, 0o600)
}

// joinLimit bounds a join until it is decided.
const joinLimit = 40 * time.Second

// join makes this device a worker of the cluster that made the token, from the next start on: then the cluster that it is
// is removed. After an error nothing has changed, except that a peering with that cluster may have ended.
func (d *Device) join(ctx context.Context, f *fabric.Fabric, token string) (Info, error) {
	c, err := trust.ParseCode(token)
	if err != nil {
		return Info{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	if err := f.Join(ctx, c); err != nil {
		return Info{}, err
	}
	i, err := d.fetchWhenConnected(ctx, f, c.ID)
	if err == nil {
		err = Joined{Info: i, Step: stepWipe}.save(d.State)
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, ended := f.Unpeer(undo, string(c.ID), fabric.Unpeer{Force: true, Forget: true}); ended != nil {
			d.Log.Warn("a join that failed is not undone", "err", ended)
		}
		return Info{}, err
	}
	d.Log.Info("this device joins a cluster", "cluster", i.Cluster, "node", i.Node)
	f.Leave(ctx, false)
	return i, nil
}

// fetchWhenConnected waits for the tunnel.
func (d *Device) fetchWhenConnected(ctx context.Context, f *fabric.Fabric, server peer.ID) (Info, error) {
	changed, stop := f.Changed()
	defer stop()
	for {
		l, ok := f.Link(server)
		err := cure.Errorf("there is no tunnel to %s; see that UDP and TCP %s pass between the two devices", server.Short(), "7442")
		if ok && l.State == peer.Connected {
			var i Info
			i, err = fetch(ctx, f, server, request{Name: d.NodeName, Kubernetes: d.Kubernetes})
			if known := (*rpc.Error)(nil); err == nil || errors.As(err, &known) && known.Code != "busy" {
				return i, err
			}
		}
		select {
		case <-ctx.Done():
			return Info{}, err
		case <-changed:
			changes.Wait(ctx, 100*time.Millisecond)
		case <-time.After(time.Second):
		}
	}
}

// left is the state of a device that becomes a cluster of its own at the next start.
func (j Joined) left() Joined {
	j.Step = stepLeave
	return j
}
