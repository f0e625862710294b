package external

import (
	"context"
	"fmt"
	"slices"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/target/external/rewrite"
)

// Report is the result of checking a target before it is used.
type Report struct {
	Server    string `json:"server"`
	Version   string `json:"version"`
	Namespace string `json:"namespace"`
	// Identity is that of the namespace.
	Identity Identity `json:"identity,omitzero"`
	User     string   `json:"user,omitempty"`
	// Missing are rights that the user lacks. Role grants them, as YAML; empty if none is missing.
	Missing []Missing `json:"missing,omitempty"`
	Role    string    `json:"role,omitempty"`
	// Security is the Pod Security level that the namespace enforces; empty if unknown.
	Security string `json:"podSecurity,omitempty"`
	// Room is what pods may request there now.
	Room corev1.ResourceList `json:"room,omitempty"`
	// Ends is when the credential expires, if known, Renewed by what it is renewed.
	Ends    time.Time `json:"ends,omitzero"`
	Renewed string    `json:"renewed,omitempty"`
	// Others are other homes that use the namespace as well.
	Others []string `json:"others,omitempty"`
	// Notes are information, not obstacles.
	Notes []string `json:"notes,omitempty"`
}

// Fit reports whether pods can be sent there.
func (r Report) Fit() bool {
	return !slices.ContainsFunc(r.Missing, func(m Missing) bool { return m.Needed })
}

// oldest is the first Kubernetes version with everything needed: Jobs that do not replace a pod before it has ended.
var oldest = version.MustParseGeneric("1.29")

// noTop is the prefix of the reason.
const noTop = "kubectl top shows nothing of pods there: "

// Examine checks the target and changes nothing there. An error means that it cannot be used at all, with the reason.
func Examine(ctx context.Context, s Settings, c Credential, cluster string) (Report, error) {
	r := Report{Server: c.Server, Namespace: s.Namespace, Ends: c.Ends(), Renewed: c.Renewed()}
	if !r.Ends.IsZero() && r.Renewed == "" && time.Now().After(r.Ends) {
		return r, fmt.Errorf("the credential ended %s; ask the administrator for a new kubeconfig", r.Ends.Format(time.DateTime))
	}
	config, err := c.REST()
	if err != nil {
		return r, err
	}
	config.Timeout = 15 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return r, fmt.Errorf("burst: %w", err)
	}
	if r.Version, err = serverVersion(ctx, client); err != nil {
		return r, explain(err, s.Namespace)
	}
	if v, err := version.ParseGeneric(r.Version); err == nil && v.LessThan(oldest) {
		return r, fmt.Errorf("the server runs Kubernetes %s, and %s is the oldest that pods can be sent to; ask the administrator when it is upgraded", r.Version, oldest)
	}
	me, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case err == nil:
		r.User = me.Status.UserInfo.Username
	case !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err):
		return r, explain(err, s.Namespace)
	}
	if r.User == "system:anonymous" {
		return r, fmt.Errorf("the server does not know the user of this kubeconfig; ask the administrator for a new one")
	}
	switch _, err := client.CoreV1().Namespaces().Get(ctx, s.Namespace, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		return r, fmt.Errorf("there is no namespace %s at %s; name yours with --namespace", s.Namespace, c.Server)
	case err != nil && !apierrors.IsForbidden(err):
		return r, explain(err, s.Namespace)
	}
	if r.Missing, err = Rights(ctx, client, s.Namespace, s.Network); err != nil {
		return r, explain(err, s.Namespace)
	}
	if len(r.Missing) > 0 {
		r.Role = Role(s.Namespace, r.User, s.Network)
	}
	if !r.Fit() {
		return r, nil
	}
	// An administrator's kubeconfig has all rights in a namespace that does not exist.
	if _, err := client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return r, explain(err, s.Namespace)
	}
	rules, err := read(ctx, client, config, s, cluster)
	if err != nil {
		return r, explain(err, s.Namespace)
	}
	r.Room, r.Security, r.Identity = rules.room(s.Limits), rules.security, rules.identity
	if rules.unmeasured != "" {
		r.Notes = append(r.Notes, noTop+rules.unmeasured)
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if _, ok := r.Room[name]; !ok {
			return r, fmt.Errorf("neither a quota of namespace %s nor a limit says how much %s pods may ask for there; give --limits cpu=…,memory=…", s.Namespace, name)
		}
	}
	found, err := list(ctx, config, s.Namespace, rewrite.HomeLabel)
	if err != nil {
		return r, explain(err, s.Namespace)
	}
	for _, o := range found {
		if id := o.Labels[rewrite.HomeLabel]; id != cluster && !slices.Contains(r.Others, id) {
			r.Others = append(r.Others, id)
		}
	}
	return r, nil
}
