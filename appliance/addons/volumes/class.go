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
	// yieldsAnnotation names the class to which ours leaves being the default; it
	// tells that from a user's wish that ours be none.
	yieldsAnnotation = "rivulet.dev/yields-to"
	// anywhereAnnotation says that the class was once offered on virtual nodes: if its
	// topologies are restricted now, the user did it.
	anywhereAnnotation = "rivulet.dev/anywhere"
)

var everything = labels.Everything()

// class is the StorageClass as it is made first.
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

// keepClass makes the StorageClass, and makes way for a default class of the user's.
func (c *Controller) keepClass(ctx context.Context) error {
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
		return nil // somebody else's by the same name
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

// otherDefault returns the name of a default class that is not ours, or "".
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

// yield makes ours the default class only where there is no other. That a user made
// it none is respected.
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

// offer lifts, once, the restriction to this cluster's devices that earlier versions
// made: claims may get their volume on another cluster. One that the user writes stays.
func offer(class *storagev1.StorageClass) {
	if class.Annotations[anywhereAnnotation] == "" {
		class.AllowedTopologies = nil
		metav1.SetMetaDataAnnotation(&class.ObjectMeta, anywhereAnnotation, "true")
	}
}

// className returns the class that a claim asks for, "" if none.
func className(claim *corev1.PersistentVolumeClaim) string {
	return storageutil.GetPersistentVolumeClaimClass(claim)
}
