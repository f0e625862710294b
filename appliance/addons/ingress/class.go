package ingress

import (
	"context"
	"errors"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/addons/nodeservice"
	"rivulet/offload/policy"
)

const (
	// Class is the name of the IngressClass created here.
	Class = "rivulet"
	// ControllerName is the controller in its IngressClasses; users may create more of them.
	ControllerName = "rivulet.dev/ingress"
)

// oldClass is the annotation of Ingresses older than IngressClasses.
const oldClass = "kubernetes.io/ingress.class"

// errForeign: another controller has an IngressClass of this name.
var errForeign = errors.New("IngressClass " + Class + " is of another controller")

const managedByLabel = "app.kubernetes.io/managed-by"

// standing is the relation of an Ingress to the existing classes.
type standing struct {
	// class is the IngressClass of the Ingress; nil if it has none.
	class *networkingv1.IngressClass
	// name is that of the requested class; empty if there is none.
	name string
}

// ours reports whether the Ingress is this controller's.
func (s standing) ours() bool { return s.class != nil && s.class.Spec.Controller == ControllerName }

// lent reports whether other clusters may use the class.
func (s standing) lent() bool {
	if s.class == nil {
		return false
	}
	_, lent := s.class.Labels[policy.LentLabel]
	return lent
}

// standingOf finds the class of an Ingress. One without a class belongs to the default class, also if it is older.
func standingOf(i *networkingv1.Ingress, classes []*networkingv1.IngressClass) standing {
	s := standing{name: i.Annotations[oldClass]}
	if i.Spec.IngressClassName != nil {
		s.name = *i.Spec.IngressClassName
	}
	at := slices.IndexFunc(classes, func(c *networkingv1.IngressClass) bool {
		return s.name != "" && c.Name == s.name || s.name == "" && isDefault(c)
	})
	if at >= 0 {
		s.class = classes[at]
	}
	return s
}

func isDefault(c *networkingv1.IngressClass) bool {
	return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
}

// ensureClass creates the IngressClass. It is the default if there is no other one and its owner has not changed that.
func (c *Controller) ensureClass(ctx context.Context, classes []*networkingv1.IngressClass) error {
	other := slices.ContainsFunc(classes, func(o *networkingv1.IngressClass) bool { return o.Name != Class && isDefault(o) })
	api := c.cfg.Client.NetworkingV1().IngressClasses()
	at := slices.IndexFunc(classes, func(o *networkingv1.IngressClass) bool { return o.Name == Class })
	if at < 0 {
		made := &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: Class, Labels: map[string]string{managedByLabel: nodeservice.ManagedBy}},
			Spec: networkingv1.IngressClassSpec{Controller: ControllerName}}
		if !other {
			made.Annotations = map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}
		}
		_, err := api.Create(ctx, made, metav1.CreateOptions{FieldManager: fieldManager})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("ingress class %s: %w", Class, err)
		}
		return nil
	}
	have := classes[at]
	if have.Spec.Controller != ControllerName {
		return fmt.Errorf("%w, %s", errForeign, have.Spec.Controller)
	}
	set, said := have.Annotations[networkingv1.AnnotationIsDefaultIngressClass]
	if set == "false" || said != other { // "false" is the owner's
		return nil
	}
	update := have.DeepCopy()
	if other {
		delete(update.Annotations, networkingv1.AnnotationIsDefaultIngressClass)
	} else {
		metav1.SetMetaDataAnnotation(&update.ObjectMeta, networkingv1.AnnotationIsDefaultIngressClass, "true")
	}
	if _, err := api.Update(ctx, update, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("ingress class %s: %w", Class, err)
	}
	return nil
}

// removeClass removes the IngressClass of an earlier run, because it is not served.
func (c *Controller) removeClass(ctx context.Context, classes []*networkingv1.IngressClass) error {
	for _, have := range classes {
		if have.Name != Class || have.Spec.Controller != ControllerName || have.Labels[managedByLabel] != nodeservice.ManagedBy {
			continue
		}
		err := c.cfg.Client.NetworkingV1().IngressClasses().Delete(ctx, Class, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("ingress class %s: %w", Class, err)
		}
	}
	return nil
}
