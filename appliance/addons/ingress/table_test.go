package ingress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"pgregory.net/rapid"
)

func path(kind networkingv1.PathType, p string) networkingv1.HTTPIngressPath {
	return networkingv1.HTTPIngressPath{Path: p, PathType: &kind}
}

const (
	exact  = networkingv1.PathTypeExact
	prefix = networkingv1.PathTypePrefix
	own    = networkingv1.PathTypeImplementationSpecific
)

// The examples of Kubernetes' own page on Ingresses, and what it leaves open.
func TestPaths(t *testing.T) {
	for _, c := range []struct {
		kind       networkingv1.PathType
		path, asks string
		want       bool
	}{
		{prefix, "/", "/", true}, {prefix, "/", "/any/thing", true}, {prefix, "", "/any", true},
		{exact, "/foo", "/foo", true}, {exact, "/foo", "/bar", false}, {exact, "/foo", "/foo/", false}, {exact, "/foo/", "/foo", false},
		{prefix, "/foo", "/foo", true}, {prefix, "/foo", "/foo/", true}, {prefix, "/foo/", "/foo", true}, {prefix, "/foo/", "/foo/", true},
		{prefix, "/aaa/bb", "/aaa/bbb", false}, {prefix, "/aaa/bbb", "/aaa/bbb", true}, {prefix, "/aaa/bbb/", "/aaa/bbb", true},
		{prefix, "/aaa/bbb", "/aaa/bbb/", true}, {prefix, "/aaa/bbb", "/aaa/bbb/ccc", true}, {prefix, "/aaa/bbb", "/aaa/bbbxyz", false},
		{prefix, "/foo", "/Foo", false}, {own, "/foo", "/foo/bar", true}, {own, "/foo", "/food", false},
	} {
		if got := routeOf(path(c.kind, c.path)).has(c.asks); got != c.want {
			t.Errorf("%s %q has %q: %v", c.kind, c.path, c.asks, got)
		}
	}
}

func TestHosts(t *testing.T) {
	all := newTable()
	for host, name := range map[string]string{"a.example": "exact", "*.example": "wildcard", "": "any"} {
		all.put(host, route{path: "/x", to: &backend{name: name}})
	}
	all.put("", route{to: &backend{name: "root"}})
	for _, c := range [][3]string{
		{"a.example", "/x", "exact"}, {"b.example", "/x", "wildcard"}, {"a.b.example", "/x", "any"}, {"example", "/x", "any"},
		{"", "/x", "any"}, {"a.example", "/y", "root"}, {".example", "/x", "wildcard"},
	} {
		if got := all.find(c[0], c[1]); got == nil || got.name != c[2] {
			t.Errorf("%s%s goes to %+v, want %s", c[0], c[1], got, c[2])
		}
	}
}

// rule is what the model knows of a rule.
type rule struct {
	host, path string
	exact      bool
}

// applies says by the words of networking/v1 whether a request is a rule's.
func (r rule) applies(host, asked string) bool {
	switch {
	case r.host == "":
	case strings.HasPrefix(r.host, "*."):
		if labels := strings.Split(host, "."); strings.Join(labels[1:], ".") != r.host[2:] {
			return false
		}
	case r.host != host:
		return false
	}
	if r.exact {
		return r.path == asked
	}
	want := elements(r.path)
	have := strings.Split(asked, "/")[1:]
	return len(have) >= len(want) && slices.Equal(have[:len(want)], want)
}

func elements(p string) []string {
	if p = strings.TrimSuffix(p, "/"); p == "" {
		return nil
	}
	return strings.Split(p, "/")[1:]
}

// over reports whether r wins over o where both apply.
func (r rule) over(o rule) bool {
	rank := func(r rule) [3]int {
		host := 2
		if r.host == "" {
			host = 0
		} else if r.host[0] == '*' {
			host = 1
		}
		if r.exact {
			return [3]int{host, len(r.path), 1}
		}
		return [3]int{host, len(strings.TrimSuffix(r.path, "/")), 0}
	}
	a, b := rank(r), rank(o)
	return slices.Compare(a[:], b[:]) > 0
}

// Whatever rules there are, a request goes where a look at all of them says.
func TestFindIsTheModels(t *testing.T) {
	hosts := rapid.SampledFrom([]string{"", "a.b", "b", "c.a.b", "*.b", "*.a.b", "d.b"})
	paths := rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "xy"}), 0, 3).Draw(t, "elements"), "/")
	})
	rapid.Check(t, func(t *rapid.T) {
		rules := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rule {
			p := paths.Draw(t, "path")
			if rapid.Bool().Draw(t, "slash") && p != "/" {
				p += "/"
			}
			return rule{hosts.Draw(t, "host"), p, rapid.Bool().Draw(t, "exact")}
		}), 0, 12).Draw(t, "rules")
		all := newTable()
		for i, r := range rules {
			kind := prefix
			if r.exact {
				kind = exact
			}
			made := routeOf(path(kind, r.path))
			made.to = &backend{name: fmt.Sprint(i)}
			all.put(r.host, made)
		}
		host, asked := hosts.Filter(func(h string) bool { return !strings.HasPrefix(h, "*") }).Draw(t, "asked host"), paths.Draw(t, "asked path")
		want := -1
		for i, r := range rules {
			if r.applies(host, asked) && (want < 0 || r.over(rules[want])) {
				want = i
			}
		}
		got := -1
		if b := all.find(host, asked); b != nil {
			fmt.Sscan(b.name, &got)
		}
		if got != want {
			t.Fatalf("%s%s goes to rule %d, want %d of %+v", host, asked, got, want, rules)
		}
	})
}

func TestEndpointsTakeTurns(t *testing.T) {
	b := &backend{}
	for i := range 3 {
		b.endpoints = append(b.endpoints, &endpoint{addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 42, 0, byte(i)}), 80)})
	}
	now := time.Unix(1000, 0)
	count := map[*endpoint]int{}
	for range 30 {
		count[b.inTurn(now)[0]]++
	}
	for _, e := range b.endpoints {
		if count[e] != 10 {
			t.Errorf("%s had %d of 30 turns", e.addr, count[e])
		}
	}
	b.endpoints[1].failed.Store(now.UnixNano())
	for range 6 {
		order := b.inTurn(now.Add(rested - 1))
		if len(order) != 3 || order[2] != b.endpoints[1] {
			t.Error("a pod that did not answer is tried before others")
		}
	}
	clear(count)
	for range 3 {
		count[b.inTurn(now.Add(rested))[0]]++
	}
	if count[b.endpoints[1]] != 1 {
		t.Error("a pod that did not answer once is never tried again")
	}
}
