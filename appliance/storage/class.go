package storage

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

	"rivulet/appliance/nodeservice"
)

const (
	defaultAnnotation = "storageclass.kubernetes.io/is-default-class"
	betaDefault       = "storageclass.beta.kubernetes.io/is-default-class"
	// yieldsAnnotation names the class to which ours leaves being the default; it
	// tells that from a user's wish that ours be none.
	yieldsAnnotation = "rivulet.dev/yields-to"
)

var everything = labels.Everything()

// class is the StorageClass as it is made first.
func (c *Controller) class() *storagev1.StorageClass {
	mode, reclaim, grow := storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimDelete, true
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name:        ClassName,
			Labels:      map[string]string{"app.kubernetes.io/managed-by": nodeservice.ManagedBy},
			Annotations: map[string]string{defaultAnnotation: "true"},
		},
		Provisioner: Provisioner, ReclaimPolicy: &reclaim, VolumeBindingMode: &mode, AllowVolumeExpansion: &grow,
		AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
			{Key: corev1.LabelHostname, Values: []string{c.cfg.NodeName}},
		}}},
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
		fresh := c.class()
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
	allowNode(want, c.cfg.NodeName)
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

// allowNode keeps the scheduler from choosing a node that has no folders: a virtual
// node, above all. Other devices of the cluster add themselves.
func allowNode(class *storagev1.StorageClass, node string) {
	for i := range class.AllowedTopologies {
		for j := range class.AllowedTopologies[i].MatchLabelExpressions {
			e := &class.AllowedTopologies[i].MatchLabelExpressions[j]
			if e.Key == corev1.LabelHostname {
				if !slices.Contains(e.Values, node) {
					e.Values = append(e.Values, node)
				}
				return
			}
		}
	}
	class.AllowedTopologies = append(class.AllowedTopologies, corev1.TopologySelectorTerm{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelHostname, Values: []string{node}}},
	})
}

// className returns the class that a claim asks for, "" if none.
func className(claim *corev1.PersistentVolumeClaim) string {
	return storageutil.GetPersistentVolumeClaimClass(claim)
}
