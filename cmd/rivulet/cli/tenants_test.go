package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"rivulet/offload"
	"rivulet/offload/provider/tenancy"
)

func TestTenantsAreListedAndFound(t *testing.T) {
	tenants := []offload.Consumer{
		{Consumer: tenancy.Consumer{ID: "aaaaaaaabbbb", Name: "a", Pods: 3, Twins: map[string]string{"lab": "lab-a", "shop": "shop-a"}}, Peer: true},
		{Consumer: tenancy.Consumer{ID: "ccccccccdddd", Twins: map[string]string{"lab": "lab-c"}}, Silent: 90 * time.Minute, Left: 22*time.Hour + 30*time.Minute},
		{Consumer: tenancy.Consumer{ID: "ccccccccdddf", Name: "a"}},
	}
	var out bytes.Buffer
	if err := printTenants(&out, tenants, false); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{"DELETED IN", "lab-a,shop-a", "22h30m0s"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("no %q in %q", want, lines[i])
		}
	}
	for name, want := range map[string]string{"aaaaaaaa": "aaaaaaaabbbb", "ccccccccdddd": "ccccccccdddd", "cccccccc": "!use the ID", "a": "!use the ID", "b": "!see: rivulet tenants"} {
		g, err := findTenant(tenants, name)
		if bad, wrong := strings.CutPrefix(want, "!"); wrong && (err == nil || !strings.Contains(err.Error(), bad)) || !wrong && string(g.ID) != want {
			t.Errorf("%s: %v %v", name, g.ID, err)
		}
	}
}
