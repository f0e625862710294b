package users

import (
	"context"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/engine/controlplane/roles"
)

const (
	// Label is on every binding made here; its value is the user.
	Label = "rivulet.dev/kubeconfig"
	group = "rivulet:users"
	// extra is what a user of the whole cluster may read beside the role.
	extra = "rivulet:user"
)

// userName is a user's name at the API server.
func userName(user string) string { return "rivulet:user:" + user }

// rules of ClusterRole extra: cluster-scoped resources that view leaves out.
var rules = append(slices.Clone(roles.Extra), rbacv1.PolicyRule{APIGroups: []string{"rivulet.dev"}, Resources: []string{"peers"}, Verbs: []string{"get", "list", "watch"}})

// clusterRole is the Kubernetes name of a record's role. An admin of the whole cluster has the owner's rights.
func (r record) clusterRole() string {
	if r.Namespace == "" && r.Role == "admin" {
		return "cluster-admin"
	}
	return r.Role
}

// binding is a required role binding.
type binding struct{ namespace, name, role, user string }

func (r record) bindings() []binding {
	one := binding{r.Namespace, "rivulet:user:" + r.User, r.clusterRole(), r.User}
	if r.Namespace != "" {
		return []binding{one}
	}
	return []binding{one, {"", "rivulet:user:" + r.User + ":extra", extra, r.User}}
}

// settle makes the bindings match the records. It deletes first.
func settle(ctx context.Context, client kubernetes.Interface, active []record) error {
	want := map[binding]bool{}
	for _, r := range active {
		for _, b := range r.bindings() {
			want[b] = true
		}
	}
	rbac := client.RbacV1()
	ours := metav1.ListOptions{LabelSelector: Label}
	wide, err := rbac.ClusterRoleBindings().List(ctx, ours)
	if err != nil {
		return err
	}
	narrow, err := rbac.RoleBindings("").List(ctx, ours)
	if err != nil {
		return err
	}
	is := func(m metav1.ObjectMeta, role rbacv1.RoleRef, who []rbacv1.Subject) (binding, bool) {
		b := binding{m.Namespace, m.Name, role.Name, m.Labels[Label]}
		return b, want[b] && role.Kind == "ClusterRole" && len(who) == 1 && who[0].Kind == rbacv1.UserKind && who[0].Name == userName(b.user)
	}
	var errs []error
	gone := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	for _, o := range wide.Items {
		if b, right := is(o.ObjectMeta, o.RoleRef, o.Subjects); right {
			delete(want, b)
		} else {
			gone(rbac.ClusterRoleBindings().Delete(ctx, o.Name, metav1.DeleteOptions{}))
		}
	}
	for _, o := range narrow.Items {
		if b, right := is(o.ObjectMeta, o.RoleRef, o.Subjects); right {
			delete(want, b)
		} else {
			gone(rbac.RoleBindings(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{}))
		}
	}
	if len(want) > 0 {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: extra}, Rules: rules}
		if _, err := rbac.ClusterRoles().Update(ctx, role, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
			_, err = rbac.ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
			errs = append(errs, err)
		} else {
			errs = append(errs, err)
		}
	}
	for b := range want {
		meta := metav1.ObjectMeta{Namespace: b.namespace, Name: b.name, Labels: map[string]string{Label: b.user}}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b.role}
		who := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: userName(b.user)}}
		if b.namespace == "" {
			_, err = rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: who}, metav1.CreateOptions{})
		} else {
			_, err = rbac.RoleBindings(b.namespace).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: who}, metav1.CreateOptions{})
		}
		if apierrors.IsNotFound(err) {
			err = nil // the namespace is gone, and the binding with it
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("role bindings: %w", err)
	}
	return nil
}
