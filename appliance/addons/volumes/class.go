package volumes

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/appliance/addons/nodeservice"
)

const (
	defaultAnnotation = "storageclass.kubernetes.io/is-default-class"
	betaDefault       = "storageclass.beta.kubernetes.io/is-default-class"
	// yieldsAnnotation names the class to which this one yields being the default; without it the user has changed
	// that.
	yieldsAnnotation = "rivulet.dev/yields-to"
	// anywhereAnnotation marks a class that was offered on virtual nodes once: restricted topologies are then the
	// user's.
	anywhereAnnotation = "rivulet.dev/anywhere"
)

var everything = labels.Everything()

// class is the StorageClass at its creation.
func class() *storagev1.StorageClass {
	mode, reclaim, grow := storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimDelete, true
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name:        ClassName,
			Labels:      map[string]string{"app.kubernetes.io/managed-by": nodeservice.ManagedBy},
			Annotations: map[string]string{defaultAnnotation: "true", anywhereAnnotation: "true"},
		},
		Provisioner: Provisioner, ReclaimPolicy: &reclaim, VolumeBindingMode: &mode, AllowVolumeExpansion: &grow,
	}
}

// keepClass creates the StorageClass, and yields to a default class of the user.
func (c *Controller) keepClass(ctx context.Context) error {
	if c.cfg.Worker {
		return nil
	}
	all, err := c.classes.List(everything)
	if err != nil {
		return fmt.Errorf("storage: %w", err)
	}
	other := otherDefault(all)
	api := c.cfg.Client.StorageV1().StorageClasses()
	have, err := api.Get(ctx, ClassName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		fresh := class()
		yield(fresh, other)
		if _, err := api.Create(ctx, fresh, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("storage: StorageClass %s: %w", ClassName, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("storage: StorageClass %s: %w", ClassName, err)
	case have.Provisioner != Provisioner:
		return nil // another program's, by the same name
	}
	want := have.DeepCopy()
	yield(want, other)
	offer(want)
	if equality.Semantic.DeepEqual(have, want) {
		return nil
	}
	if _, err := api.Update(ctx, want, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("storage: StorageClass %s: %w", ClassName, err)
	}
	return nil
}

// otherDefault returns the name of another default class, or "".
func otherDefault(all []*storagev1.StorageClass) string {
	var names []string
	for _, s := range all {
		if s.Name != ClassName && (s.Annotations[defaultAnnotation] == "true" || s.Annotations[betaDefault] == "true") {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return append(names, "")[0]
}

// yield makes this class the default only if there is no other. A user's change to no default stays.
func yield(class *storagev1.StorageClass, other string) {
	_, yields := class.Annotations[yieldsAnnotation]
	switch {
	case other != "" && class.Annotations[defaultAnnotation] == "true":
		class.Annotations[defaultAnnotation], class.Annotations[yieldsAnnotation] = "false", other
	case other == "" && yields:
		class.Annotations[defaultAnnotation] = "true"
		delete(class.Annotations, yieldsAnnotation)
	}
}

// offer removes, once, the restriction to this cluster's devices of a class without the annotation: claims may get
// their volume on another cluster. A restriction by the user stays.
func offer(class *storagev1.StorageClass) {
	if class.Annotations[anywhereAnnotation] == "" {
		class.AllowedTopologies = nil
		metav1.SetMetaDataAnnotation(&class.ObjectMeta, anywhereAnnotation, "true")
	}
}

// className returns the class that a claim requests, "" if none.
func className(claim *corev1.PersistentVolumeClaim) string {
	return storageutil.GetPersistentVolumeClaimClass(claim)
}
