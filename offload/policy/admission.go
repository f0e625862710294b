package policy

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

//go:embed admission.yaml
var admission []byte

//go:embed images.yaml
var images []byte

// FieldManager is that of everything that Rivulet applies.
const FieldManager = "rivulet"

// EnsureAdmission installs or updates the policies by which the API server adds tolerations and affinity to the pods of
// offloaded namespaces. Existing pods are not changed. It needs an API server with MutatingAdmissionPolicy in
// admissionregistration.k8s.io/v1beta1.
func EnsureAdmission(ctx context.Context, config *rest.Config) error {
	if err := Apply(ctx, config, admission); err != nil {
		return err
	}
	return Apply(ctx, config, images)
}

// Apply applies admission policies and their bindings, a stream of YAML documents, to the API server. It is idempotent.
func Apply(ctx context.Context, config *rest.Config, manifests []byte) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	objects, err := Decode(manifests)
	if err != nil {
		return err
	}
	for _, object := range objects {
		gvr, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		_, err := client.Resource(gvr).Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
		if err = Unserved(object, err); err != nil {
			return fmt.Errorf("policy: apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// Decode reads a stream of YAML documents, an object each.
func Decode(manifests []byte) (objects []*unstructured.Unstructured, err error) {
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := documents.Decode(object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("policy: manifest: %w", err)
		}
		objects = append(objects, object)
	}
}

// Unserved is an error of a write, or what the API server needs if it does not have the kind.
func Unserved(object *unstructured.Unstructured, err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the API server does not serve it; start it with --kube-apiserver-arg=feature-gates=MutatingAdmissionPolicy=true --kube-apiserver-arg=runtime-config=%s=true", object.GetAPIVersion())
	}
	return err
}
