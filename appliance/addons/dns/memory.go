package dns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/coredns/coredns/plugin/kubernetes"
	"github.com/coredns/coredns/plugin/kubernetes/object"
	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/policy"
)

// memory is the last known state of the cluster. A restarted supervisor answers from it until the API server is there,
// which restarts with it and takes much longer. It is stored where a boot deletes it: then its addresses are stale.
type memory struct {
	Services  []*object.Service
	Endpoints []*object.Endpoints
	// Imports are ServiceImports, and Remote their endpoints.
	Imports    []*object.ServiceImport
	Remote     []*object.MultiClusterEndpoints
	Namespaces map[string]bool
	Pods       map[netip.Addr][2]string // namespace, name
	Twins      map[string][2]string     // origin and home namespace, by twin
	// Tenants are pods in twins: true if made for home's addresses. Mapped are the Services that have one.
	Tenants []madePod
	Mapped  []homeaddr.Reflected
}

type madePod struct {
	Namespace, Name string
	HomeAddresses   bool
	HomePods        bool
}

// rememberEvery is the interval of checks for changes; the file is written only after one, and never to a disk.
const rememberEvery = 2 * time.Second

// remember keeps the memory up to date until ctx ends.
func (s *Server) remember(ctx context.Context) {
	if s.cfg.Memory == "" {
		return
	}
	tick := time.NewTicker(rememberEvery)
	defer tick.Stop()
	var seen [2]int64
	for ctx.Err() == nil {
		if now := [2]int64{s.cluster.modified(), s.index.changes()}; s.ready() && now != seen {
			if err := s.snapshot().save(s.cfg.Memory); err != nil {
				s.log.Warn("a restart will interrupt the names of the cluster", "err", err)
			}
			seen = now
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// snapshot returns the current state.
func (s *Server) snapshot() memory {
	m := memory{Namespaces: map[string]bool{}, Pods: map[netip.Addr][2]string{}, Twins: map[string][2]string{}}
	api := s.cluster.live.Load().APIConn
	m.Services, m.Endpoints = api.ServiceList(), api.EndpointsList()
	for _, svc := range m.Services {
		m.Namespaces[svc.Namespace] = true
	}
	if !s.cluster.without.Load() {
		m.Imports = api.ServiceImportList()
	}
	for _, i := range m.Imports {
		m.Namespaces[i.Namespace] = true
		m.Remote = append(m.Remote, api.McEpIndex(i.Index)...)
	}
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for a, p := range s.index.pods {
		m.Namespaces[p.namespace] = true
		m.Pods[a] = [2]string{p.namespace, p.name}
	}
	for p, made := range s.index.made {
		if _, tenant := s.index.twins[p.namespace]; tenant {
			m.Tenants = append(m.Tenants, madePod{p.namespace, p.name, made != "", made == policy.HomeAddressesOfPods})
		}
	}
	m.Mapped = slices.Collect(maps.Values(s.index.services))
	for twin, home := range s.index.twins {
		m.Twins[twin] = [2]string{home.origin, home.namespace}
	}
	return m
}

func (m memory) save(path string) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	fresh := path + ".new"
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	if err := os.WriteFile(fresh, raw, 0o600); err != nil {
		return fmt.Errorf("dns: %w; free memory in %s", err, filepath.Dir(path))
	}
	return os.Rename(fresh, path)
}

// recall makes the server answer from the memory, if there is a valid one.
func (s *Server) recall() {
	if s.cfg.Memory == "" {
		return
	}
	raw, err := os.ReadFile(s.cfg.Memory)
	if err != nil {
		return // the first start since the boot
	}
	var m memory
	if err := json.Unmarshal(raw, &m); err != nil {
		s.log.Warn("what was known before the restart is unreadable; names of the cluster wait for the API server", "err", err)
		return
	}
	past := newIndex()
	for a, p := range m.Pods {
		past.setPod(podName{p[0], p[1]}, nil, []netip.Addr{a})
	}
	for twin, home := range m.Twins {
		past.setTwin(twin, homeName{home[0], home[1]})
	}
	for _, p := range m.Tenants {
		made := ""
		switch {
		case p.HomePods:
			made = policy.HomeAddressesOfPods
		case p.HomeAddresses:
			made = policy.HomeAddressesOfServices
		}
		past.setMade(podName{p.Namespace, p.Name}, made)
	}
	for _, r := range m.Mapped {
		past.setService(podName{r.Namespace, r.Name}, r)
	}
	k, err := s.cluster.plugin(true)
	if err != nil {
		return
	}
	k.APIConn = newRecalled(m)
	s.past = past
	s.cluster.current.Store(k)
	s.log.Info("answering names of the cluster as last known, until the API server answers", "services", len(m.Services))
}

// recalled serves CoreDNS's plugin from a memory.
type recalled struct {
	memory
	byName, byIP, byExternal map[string][]*object.Service
	endpoints, endpointsByIP map[string][]*object.Endpoints
	imports                  map[string][]*object.ServiceImport
	remote                   map[string][]*object.MultiClusterEndpoints
}

func newRecalled(m memory) *recalled {
	r := &recalled{memory: m, byName: map[string][]*object.Service{}, byIP: map[string][]*object.Service{}, byExternal: map[string][]*object.Service{},
		endpoints: map[string][]*object.Endpoints{}, endpointsByIP: map[string][]*object.Endpoints{},
		imports: map[string][]*object.ServiceImport{}, remote: map[string][]*object.MultiClusterEndpoints{}}
	for _, i := range m.Imports {
		r.imports[i.Index] = append(r.imports[i.Index], i)
	}
	for _, e := range m.Remote {
		r.remote[e.Index] = append(r.remote[e.Index], e)
	}
	for _, s := range m.Services {
		r.byName[s.Index] = append(r.byName[s.Index], s)
		for _, ip := range s.ClusterIPs {
			r.byIP[ip] = append(r.byIP[ip], s)
		}
		for _, ip := range s.ExternalIPs {
			r.byExternal[ip] = append(r.byExternal[ip], s)
		}
	}
	for _, e := range m.Endpoints {
		r.endpoints[e.Index] = append(r.endpoints[e.Index], e)
		for _, ip := range e.IndexIP {
			r.endpointsByIP[ip] = append(r.endpointsByIP[ip], e)
		}
	}
	return r
}

var errNotKnown = errors.New("dns: not known before the restart")

// The methods that CoreDNS calls of its controller.
func (r *recalled) ServiceList() []*object.Service                        { return r.Services }
func (r *recalled) EndpointsList() []*object.Endpoints                    { return r.Endpoints }
func (r *recalled) ServiceImportList() []*object.ServiceImport            { return r.Imports }
func (r *recalled) SvcIndex(name string) []*object.Service                { return r.byName[name] }
func (r *recalled) SvcIndexReverse(ip string) []*object.Service           { return r.byIP[ip] }
func (r *recalled) SvcExtIndexReverse(ip string) []*object.Service        { return r.byExternal[ip] }
func (r *recalled) SvcImportIndex(name string) []*object.ServiceImport    { return r.imports[name] }
func (r *recalled) PodIndex(string) []*object.Pod                         { return nil } // not called with `pods insecure`
func (r *recalled) EpIndex(name string) []*object.Endpoints               { return r.endpoints[name] }
func (r *recalled) EpIndexReverse(ip string) []*object.Endpoints          { return r.endpointsByIP[ip] }
func (r *recalled) McEpIndex(name string) []*object.MultiClusterEndpoints { return r.remote[name] }
func (r *recalled) Run()                                                  {}
func (r *recalled) Stop() error                                           { return nil }
func (r *recalled) Modified(kubernetes.ModifiedMode) int64                { return 0 }
func (r *recalled) GetNodeByName(context.Context, string) (*corev1.Node, error) {
	return nil, errNotKnown
}

// HasSynced is true so that a missing name is answered with NXDOMAIN: otherwise the search for a short name stops.
func (r *recalled) HasSynced() bool { return true }

func (r *recalled) GetNamespaceByName(name string) (*object.Namespace, error) {
	if !r.Namespaces[name] {
		return nil, errNotKnown
	}
	return &object.Namespace{Name: name}, nil
}
