package reflect

import "testing"

func TestAliasesPointToTwins(t *testing.T) {
	twins := map[string]string{"lab": "lab-a", "shop": "shop-a-x7"}
	for name, want := range map[string]string{
		"web.lab.svc.cluster.local":         "web.lab-a.svc.cluster.local",
		"Web.Shop.svc.cluster.local.":       "web.shop-a-x7.svc.cluster.local",
		"db-0.web.lab.svc.cluster.local":    "db-0.web.lab-a.svc.cluster.local",
		"web.kube-system.svc.cluster.local": "web.kube-system.svc.cluster.local",
		"lab.svc.cluster.local":             "lab.svc.cluster.local",
		"example.org":                       "example.org",
		"web.lab":                           "web.lab",
	} {
		if got := translateAlias(name, func(home string) (string, bool) { twin, ok := twins[home]; return twin, ok }); got != want {
			t.Errorf("%s becomes %s, want %s", name, got, want)
		}
	}
}
