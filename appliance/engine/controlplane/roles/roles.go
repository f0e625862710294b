// Package roles has the rights of user groups in a virtual cluster; the supervisor gives users access to the groups. It
// runs in the process of a virtual cluster, and alone writes there the ClusterRole Name and the bindings of the groups.
// It resets them at each start: an administrator inside may change them until then. Failure as the user sees it: the
// virtual cluster does not start.
package roles

import (
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// Name is the ClusterRole of what a user may read beside the role.
const Name = "rivulet:user"

// Group is the group of users with a role: view, edit or admin.
func Group(role string) string { return "rivulet:" + role }

// Extra has cluster-scoped resources that Kubernetes' view leaves out.
var Extra = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"nodes", "namespaces", "persistentvolumes"}, Verbs: []string{"get", "list", "watch"}},
	{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"storageclasses"}, Verbs: []string{"get", "list", "watch"}},
	{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"nodes", "pods"}, Verbs: []string{"get", "list"}},
}

// bindings have a name, a ClusterRole, and the roles whose groups have it.
var bindings = []struct {
	name, role string
	groups     []string
}{
	{"rivulet:admin", "cluster-admin", []string{"admin"}},
	{"rivulet:edit", "edit", []string{"edit"}},
	{"rivulet:view", "view", []string{"view"}},
	{Name, Name, []string{"edit", "view"}},
}

// inForce is how long Apply waits until the API server allows users what was written: its authorizer has a cache, and a
// controller fills the rules of view and edit. An administrator inside may have changed these.
const inForce = 10 * time.Second

// Apply writes the ClusterRole and the bindings, and returns when they are in force, or after inForce.
func Apply(ctx context.Context, client kubernetes.Interface) error {
	if err := write(ctx, client); err != nil {
		return err
	}
	for _, role := range []string{"view", "edit", "admin"} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: Name, Groups: []string{Group(role)},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: metav1.NamespaceDefault, Verb: "list", Resource: "configmaps"}}}
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, inForce, true, func(ctx context.Context) (bool, error) {
			answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			return err == nil && answer.Status.Allowed, nil
		})
		if err != nil {
			return ctx.Err()
		}
	}
	return nil
}

func write(ctx context.Context, client kubernetes.Interface) error {
	rbac := client.RbacV1()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: Name}, Rules: Extra}
	have, err := rbac.ClusterRoles().Get(ctx, Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = rbac.ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	case err == nil && !equality.Semantic.DeepEqual(have.Rules, role.Rules):
		_, err = rbac.ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("roles: %w", err)
	}
	for _, b := range bindings {
		want := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: b.name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b.role}}
		for _, g := range b.groups {
			want.Subjects = append(want.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: Group(g)})
		}
		have, err := rbac.ClusterRoleBindings().Get(ctx, b.name, metav1.GetOptions{})
		if err == nil {
			if equality.Semantic.DeepEqual(have.RoleRef, want.RoleRef) && equality.Semantic.DeepEqual(have.Subjects, want.Subjects) {
				continue
			}
			err = rbac.ClusterRoleBindings().Delete(ctx, b.name, metav1.DeleteOptions{}) // its role cannot be changed
		}
		if err == nil || apierrors.IsNotFound(err) {
			_, err = rbac.ClusterRoleBindings().Create(ctx, want, metav1.CreateOptions{})
		}
		if err != nil {
			return fmt.Errorf("roles: %w", err)
		}
	}
	return nil
}
