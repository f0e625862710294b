package external

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	authv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/panics"
)

// need is a right that a target needs, and its purpose.
type need struct {
	group, resource, sub string
	verbs                []string
	// without is what does not work without it.
	without string
	// must: nothing works without it; gateway: it is for the network.
	must, gateway bool
}

var keepVerbs = []string{"create", "delete", "get", "list", "update", "watch"}

var needs = []need{
	{"", "pods", "", []string{"get", "list", "watch"}, "how pods do cannot be seen", true, false},
	{"apps", "replicasets", "", keepVerbs, "pods of Deployments, StatefulSets and the like cannot run there", true, false},
	{"batch", "jobs", "", keepVerbs, "pods of Jobs cannot run there", true, false},
	{"", "configmaps", "", keepVerbs, "pods lack their ConfigMaps", true, false},
	{"", "secrets", "", keepVerbs, "pods lack their Secrets and tokens", true, false},
	{"", "pods", "", []string{"delete", "patch"}, "a changed grace period and changed labels do not reach running pods", false, false},
	{"", "pods", "log", []string{"get"}, "kubectl logs does not work", false, false},
	{"", "pods", "exec", []string{"create", "get"}, "kubectl exec and cp do not work", false, false},
	{"", "pods", "attach", []string{"create", "get"}, "kubectl attach does not work", false, false},
	{"", "pods", "portforward", []string{"create", "get"}, "kubectl port-forward does not work", false, false},
	{"", "pods", "ephemeralcontainers", []string{"patch"}, "kubectl debug does not work", false, false},
	{"", "events", "", []string{"list", "watch"}, "what happens to pods there is not told at home", false, false},
	{"", "resourcequotas", "", []string{"list", "watch"}, "the namespace's quota is not known before a pod is refused; room is what --limits say", false, false},
	{"", "limitranges", "", []string{"list"}, "defaults of the namespace are not known", false, false},
	{"metrics.k8s.io", "pods", "", []string{"get", "list"}, "kubectl top does not work", false, false},
	{"", "services", "", keepVerbs, "pods there do not find Services of home", true, true},
	{"apps", "deployments", "", []string{"create", "delete", "get", "list", "update"}, "there is no gateway, so no network", true, true},
	{"", "pods", "portforward", []string{"create", "get"}, "the gateway is not reached, so there is no network", true, true},
	{"", "pods", "proxy", []string{"create", "get"}, "the stream to the gateway is a port-forward, which is slower", false, true},
	{"", "pods", "exec", []string{"create", "get"}, "the gateway needs an image that has it (--image)", false, true},
	{"networking.k8s.io", "networkpolicies", "", []string{"create", "delete", "get", "list", "update"}, "who may talk to our pods is what the namespace says", false, true},
}

// Missing is one right that the user lacks.
type Missing struct {
	Right   string `json:"right"` // "create replicasets.apps"
	Without string `json:"without"`
	// Needed: the target is of no use without it.
	Needed bool `json:"needed"`
}

// needsOf are the needs of a target with or without a network.
func needsOf(network string) []need {
	return slices.DeleteFunc(slices.Clone(needs), func(n need) bool { return n.gateway && network == NetworkNone })
}

// reviews bounds concurrent queries.
const reviews = 8

// Rights queries which of the needed rights the user lacks.
func Rights(ctx context.Context, client kubernetes.Interface, namespace, network string) ([]Missing, error) {
	type question struct {
		need
		verb string
	}
	var all []question
	for _, n := range needsOf(network) {
		for _, verb := range n.verbs {
			all = append(all, question{n, verb})
		}
	}
	denied := make([]bool, len(all))
	errs := make([]error, len(all))
	slots := make(chan struct{}, reviews)
	var wg sync.WaitGroup
	for i, q := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			defer panics.To(func(err error) { errs[i] = err })
			answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authv1.SelfSubjectAccessReview{
				Spec: authv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authv1.ResourceAttributes{
					Namespace: namespace, Verb: q.verb, Group: q.group, Resource: q.resource, Subresource: q.sub}}}, metav1.CreateOptions{})
			if err != nil {
				errs[i] = err
				return
			}
			denied[i] = !answer.Status.Allowed
		})
	}
	wg.Wait()
	var missing []Missing
	for i, q := range all {
		if errs[i] != nil {
			return nil, fmt.Errorf("burst: rights in namespace %s: %w", namespace, errs[i])
		}
		if denied[i] {
			missing = append(missing, Missing{Right: strings.TrimSuffix(q.verb+" "+q.name()+"."+q.group, "."), Without: q.without, Needed: q.must})
		}
	}
	return missing, nil
}

// name is that of the resource in a Role.
func (n need) name() string { return strings.TrimSuffix(n.resource+"/"+n.sub, "/") }

// Role is the smallest Role, as YAML, with everything needed, with its binding to the user; for an administrator.
func Role(namespace, user, network string) string {
	type key struct{ group, resource string }
	rules := map[key][]string{}
	var order []key
	for _, n := range needsOf(network) {
		k := key{n.group, n.name()}
		if rules[k] == nil {
			order = append(order, k)
		}
		rules[k] = append(rules[k], n.verbs...)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n  name: rivulet-burst\n  namespace: %s\nrules:\n", namespace)
	for _, k := range order {
		verbs := rules[k]
		slices.Sort(verbs)
		fmt.Fprintf(&b, "- apiGroups: [%q]\n  resources: [%q]\n  verbs: [%s]\n", k.group, k.resource, strings.Join(slices.Compact(verbs), ", "))
	}
	if user == "" {
		user = "<the user>"
	}
	kind, name, subject := "User", user, "  apiGroup: rbac.authorization.k8s.io\n"
	if account, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		if ns, sa, two := strings.Cut(account, ":"); two {
			kind, name, subject = "ServiceAccount", sa, "  namespace: "+ns+"\n"
		}
	}
	fmt.Fprintf(&b, "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata:\n  name: rivulet-burst\n  namespace: %s\n"+
		"roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: Role\n  name: rivulet-burst\nsubjects:\n- kind: %s\n  name: %q\n%s", namespace, kind, name, subject)
	return b.String()
}
