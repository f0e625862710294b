package tenancy

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

//go:embed admission.yaml
var admission []byte

//go:embed pods.yaml
var podAdmission []byte

//go:embed images.yaml
var imageAdmission []byte

// imagesWithout is imageAdmission without the images of withheld registries.
func imagesWithout(withheld []string) []byte {
	list := "['-'" // a CEL list, never empty: an empty one has no type
	for _, host := range withheld {
		list += ", " + inCEL(host)
	}
	return bytes.Replace(imageAdmission, []byte("['WITHHELD']"), []byte(list+"]"), 1)
}

//go:embed fairness.yaml
var fairness []byte

// Role is the ClusterRole that consumers have in their twins, and nowhere else.
const Role = "rivulet-consumer"

// Group is the group of all consumers.
const Group = "rivulet:peers"

// User returns the user name of a consumer.
func User(id peer.ID) string { return "rivulet:peer:" + string(id) }

var (
	read  = []string{"get", "list", "watch"}
	write = append([]string{"create", "update", "patch", "delete", "deletecollection"}, read...)
)

// rules of Role. Pods are made by the consumer, or by controllers from its objects; admission restricts them, whoever
// makes them. There is no right on service accounts, roles or quotas.
func rules() []*rbacv1ac.PolicyRuleApplyConfiguration {
	rule := func(group string, verbs []string, resources ...string) *rbacv1ac.PolicyRuleApplyConfiguration {
		return rbacv1ac.PolicyRule().WithAPIGroups(group).WithResources(resources...).WithVerbs(verbs...)
	}
	return []*rbacv1ac.PolicyRuleApplyConfiguration{
		rule("", append([]string{"create", "patch", "delete"}, read...), "pods"),
		rule("", []string{"get"}, "pods/log", "pods/status"),
		// exec and the like are GET by WebSocket and POST by SPDY.
		rule("", []string{"get", "create"}, "pods/exec", "pods/attach", "pods/portforward"),
		rule("", []string{"get", "update", "patch"}, "pods/ephemeralcontainers"),
		rule("", write, "services", "configmaps", "secrets", "persistentvolumeclaims"),
		rule("discovery.k8s.io", write, "endpointslices"),
		// They can only narrow the isolation of tenants.
		rule("networking.k8s.io", write, "networkpolicies"),
		// Only with a class that this cluster lends, see admission.yaml.
		rule("networking.k8s.io", write, "ingresses"),
		rule("apps", write, "replicasets"),
		rule("batch", write, "jobs"),
		rule("", read, "events"),
		rule("events.k8s.io", read, "events"),
		rule("metrics.k8s.io", read, "pods"),
	}
}

func applyRole(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.RbacV1().ClusterRoles().Apply(ctx, rbacv1ac.ClusterRole(Role).WithRules(rules()...), options())
	if err != nil {
		return fmt.Errorf("tenancy: cluster role %s: %w", Role, err)
	}
	return nil
}

// inForce returns when the bounds are in force: nothing is granted before.
func (t *Tenancy) inForce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, boundsDeadline)
	defer cancel()
	if t.policies.Wait(ctx) {
		return nil
	}
	return refuse(503, "bounds-pending", statusCure, "what bounds other clusters here is not in force")
}

// statusCure is the cure for problems that the provider's owner has to solve.
const statusCure = "try again; `rivulet status` on the provider says what is wrong"

// furnish grants the consumer's rights in the twin once its quota is in force, and denies the twin's pods a token of
// this cluster.
func (t *Tenancy) furnish(ctx context.Context, twin string, consumer peer.ID) error {
	var beside errgroup.Group // the quota takes longest
	beside.Go(func() error {
		account := corev1ac.ServiceAccount("default", twin).WithAutomountServiceAccountToken(false)
		if _, err := t.client.CoreV1().ServiceAccounts(twin).Apply(ctx, account, options()); err != nil {
			return fmt.Errorf("tenancy: service account of twin %s: %w", twin, err)
		}
		return errors.Join(apart(ctx, t, twin, consumer), t.defaults(ctx, twin, consumer))
	})
	if err := errors.Join(t.bounded(ctx, twin), beside.Wait()); err != nil {
		return err
	}
	binding := rbacv1ac.RoleBinding(Role, twin).
		WithRoleRef(rbacv1ac.RoleRef().WithAPIGroup("rbac.authorization.k8s.io").WithKind("ClusterRole").WithName(Role)).
		WithSubjects(rbacv1ac.Subject().WithAPIGroup("rbac.authorization.k8s.io").WithKind("User").WithName(User(consumer)))
	if _, err := t.client.RbacV1().RoleBindings(twin).Apply(ctx, binding, options()); err != nil {
		return fmt.Errorf("tenancy: role binding of twin %s: %w", twin, err)
	}
	return t.entitled(ctx, twin, consumer)
}

// refused returns the code and text with which a request to a namespace is refused (empty: to none), 0 if it is not:
// the consumer has rights only where it is bounded.
func (t *Tenancy) refused(namespace string, consumer peer.ID) (code int, why string) {
	ns, known := t.twinOf(namespace, consumer)
	switch {
	case !t.policies.InForce(), !t.namespaces.Informer().HasSynced(), known && !isBounded(ns):
		return http.StatusServiceUnavailable, "what bounds other clusters here is not in force; " + statusCure
	case namespace != "" && !known: // worded as by the API server: without its label it may still have a binding
		return http.StatusForbidden, fmt.Sprintf("User %q cannot reach namespace %q: it is no twin of this cluster's", User(consumer), namespace)
	}
	return 0, ""
}

// isMine reports whether the cache has the consumer's twin with the right labels.
func (t *Tenancy) isMine(twin string, consumer peer.ID) bool {
	ns, known := t.twinOf(twin, consumer)
	return known && isBounded(ns)
}

// entitled returns when the API server acts on the consumer's rights in the twin: it receives a new binding by its own
// watch, and refuses requests before.
func (t *Tenancy) entitled(ctx context.Context, twin string, consumer peer.ID) error {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: User(consumer), Groups: []string{Group},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: twin, Verb: "create", Resource: "pods"}}}
	for deadline := time.Now().Add(rightsDeadline); ; {
		answer, err := t.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("tenancy: rights in twin %s: %w", twin, err)
		case answer.Status.Allowed && t.isMine(twin, consumer):
			return nil
		case time.Now().After(deadline):
			return refuse(503, "rights-pending", statusCure, "the rights in twin %s are not in force yet", twin)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rightsLook): // there is nothing to watch
		}
	}
}

// rightsDeadline is how long the API server may take to act on a new binding, or on policies, rightsLook the pause
// between two checks.
const rightsDeadline, rightsLook = 5 * time.Second, 10 * time.Millisecond

// boundsDeadline is how long a request for a twin waits for the bounds, which on a slow board take seconds after a
// start. The consumer itself waits for 10 s.
const boundsDeadline = 8 * time.Second

func options() metav1.ApplyOptions {
	return metav1.ApplyOptions{FieldManager: policy.FieldManager, Force: true}
}
