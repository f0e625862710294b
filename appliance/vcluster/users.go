package vcluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/peer"
)

// Users reach a virtual cluster through package network/users, which holds the credentials made here: only Kubeconfig
// returns a credential of the virtual cluster's API server that leaves the device.

// Kubeconfig is an administrator's, for an object's Secret; it is renewed after half of its validity.
func (k *Manager) Kubeconfig(name string) ([]byte, error) {
	c, ca, err := k.trusted(name)
	if err != nil {
		return nil, err
	}
	return kubeconfigOf(c.secretDir(), "admin", name, "https://"+c.address().String(), ca)
}

// rootKubeconfig is for this device's root, independent of RBAC inside.
func (k *Manager) rootKubeconfig(name string) ([]byte, error) {
	c, ca, err := k.trusted(name)
	if err != nil {
		return nil, err
	}
	c.used.Store(use{time.Now(), "root"})
	crt, key, err := c.pki().issue("rivulet:root", adminGroup, time.Now().Add(rootLife))
	if err != nil {
		return nil, err
	}
	return kubeconfig(name, "https://"+c.address().String(), ca, crt, key)
}

// trusted returns a virtual cluster and the authority of its server.
func (k *Manager) trusted(name string) (*cluster, []byte, error) {
	c, err := k.get(name)
	if err != nil {
		return nil, nil, err
	}
	authority := filepath.Join(c.tlsDir(), "server-ca.crt")
	if _, err = os.Stat(authority); err != nil { // before the first start
		err = c.certificates()
	} else { // the other certificates are those that the process has read at its start
		c.certs.Lock()
		err = c.pki().admin()
		c.certs.Unlock()
	}
	if err != nil {
		return nil, nil, err
	}
	ca, err := os.ReadFile(authority)
	return c, ca, diskErr(err)
}

// Identity returns the identity for a name.
func (k *Manager) Identity(name string) (peer.ID, error) {
	c, err := k.get(name)
	if err != nil {
		return "", err
	}
	r := c.record()
	if r.Deleting {
		return "", fmt.Errorf("%s is being deleted; see: rivulet vcluster list", name)
	}
	return r.ID, nil
}

// Identities returns all identities; false until the records are read.
func (k *Manager) Identities() (map[peer.ID]bool, bool) {
	k.mu.Lock()
	known := k.ctx != nil && !k.unread.Load()
	k.mu.Unlock()
	out := map[peer.ID]bool{}
	for id := range k.Consumers() {
		out[id] = true
	}
	return out, known
}

// of returns the name for an identity.
func (k *Manager) of(id peer.ID) (string, error) {
	name, ok := k.Consumers()[id]
	if !ok {
		return "", errNone
	}
	return name, nil
}

// Ready returns nil once it is awake for a request of the user, or the reason why it is not, with what a user of it can
// do, who has no access to this device.
func (k *Manager) Ready(ctx context.Context, id peer.ID, user string, watches bool) error {
	name, err := k.of(id)
	if err != nil {
		return errors.New("it is not there any more; ask whoever gave you this access")
	}
	c, err := k.get(name)
	if err != nil {
		return err
	}
	v := c.brief()
	if watches = watches && !v.WatchKeepsAwake; !watches {
		c.used.Store(use{time.Now(), user})
	}
	switch {
	case v.State == Awake:
		return nil
	case v.State == Asleep && watches:
		return controlplane.ErrAsleep
	}
	request(c)
	v, err = k.Await(ctx, name)
	switch {
	case err == nil:
	case v.State == Paused:
		return errors.New("it is paused, and nothing in it is lost; ask whoever gave you this access to resume it")
	case v.State == Failed:
		return fmt.Errorf("its control plane does not start; ask whoever gave you this access to look at it: rivulet vcluster describe %s", name)
	case v.WaitsForMemory:
		return errors.New("it waits until another virtual cluster of its device sleeps, since there is no memory for more; try again in a few minutes")
	case ctx.Err() != nil:
		return fmt.Errorf("it is being started: %w; try again in a minute", ctx.Err())
	}
	return err
}

// REST returns access to its API server as a user in a group, valid until that time.
func (k *Manager) REST(id peer.ID, user, group string, until time.Time) (*rest.Config, error) {
	name, err := k.of(id)
	if err != nil {
		return nil, err
	}
	c, ca, err := k.trusted(name)
	if err != nil {
		return nil, err
	}
	crt, key, err := c.pki().issue(user, group, until)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: "https://" + c.address().String(), TLSClientConfig: rest.TLSClientConfig{CAData: ca, CertData: crt, KeyData: key},
		// Without the proxy of the environment. This also makes the transport private to the user.
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
	}, nil
}
