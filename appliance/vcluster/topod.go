package vcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	"rivulet/fabric/peer"
	"rivulet/offload/homeapi"
)

// An API server reaches its webhooks and API services, and targets of the pod and Service proxy, by CONNECT on the
// socket of its host. It reaches only running pods of its virtual cluster, at any port.

const (
	// maxToPods bounds the concurrent connections of one virtual cluster to its pods.
	maxToPods = 128
	// toPodTime limits the setup of a connection.
	toPodTime = 5 * time.Second
)

// Addresses checks addresses of pods on this device; the container network implements it.
type Addresses interface {
	// Has reports whether a pod of the consumer has the address now.
	Has(consumer peer.ID, at netip.Addr) bool
	// Changed reports changes of Has, as peer.Following does.
	Changed() (<-chan struct{}, func())
}

// toPod joins a connection with one to a pod. The tenant chooses the address, so it is checked that a pod of the tenant
// has it: before the connection is opened, after that, and as long as it lasts.
func (c *cluster) toPod(w http.ResponseWriter, r *http.Request) {
	own, pods := c.record(), c.k.cfg.Addresses
	at, err := netip.ParseAddrPort(r.Host)
	has := func() bool { return err == nil && pods != nil && !c.record().Deleting && pods.Has(own.ID, at.Addr()) }
	refuse := func() {
		http.Error(w, fmt.Sprintf("%.100q is no running pod of virtual cluster %s, and its API server reaches nothing else: name a Service that leads to its own pods (in clientConfig.service, not .url)", r.Host, own.Name), http.StatusForbidden)
	}
	if !has() {
		refuse()
		return
	}
	ctx, end := context.WithCancel(r.Context())
	defer end()
	making, made := context.WithTimeoutCause(ctx, toPodTime, errors.New("it does not answer"))
	defer made()
	select {
	case c.toPods <- struct{}{}:
		defer func() { <-c.toPods }()
	case <-making.Done():
		http.Error(w, fmt.Sprintf("virtual cluster %s has %d connections to its webhooks and API services, and may have no more: let them answer sooner", own.Name, maxToPods), http.StatusServiceUnavailable)
		return
	}
	moved, stop := pods.Changed()
	defer stop()
	pod, dialed := c.k.dial(making, "tcp4", at.String())
	if dialed != nil {
		http.Error(w, fmt.Sprintf("pod %s of virtual cluster %s: %v; does it listen there, and does a NetworkPolicy let it be reached?", at, own.Name, dialed), http.StatusBadGateway)
		return
	}
	defer pod.Close()
	if !has() {
		refuse()
		return
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-moved:
				if !has() {
					end()
				}
			}
		}
	}()
	server, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		c.k.cfg.Log.Warn("a virtual cluster does not reach its pod", "name", own.Name, "err", err)
		return
	}
	defer server.Close()
	if _, err := io.WriteString(server, "HTTP/1.1 200 OK\r\n\r\n"); err == nil {
		homeapi.Join(ctx, server, pod)
	}
}
