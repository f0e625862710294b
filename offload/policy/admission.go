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

// FieldManager owns what Rivulet applies.
const FieldManager = "rivulet"

// EnsureAdmission installs, or brings up to date, what makes the API server add
// tolerations and affinity to the pods of offloaded namespaces. Pods that exist
// already are not changed. It needs an API server that serves
// MutatingAdmissionPolicy in admissionregistration.k8s.io/v1beta1.
func EnsureAdmission(ctx context.Context, config *rest.Config) error {
	if err := Apply(ctx, config, admission); err != nil {
		return err
	}
	return Apply(ctx, config, images)
}

// Apply brings admission policies and their bindings, a stream of YAML
// documents, to the API server. Applying the same again changes nothing.
func Apply(ctx context.Context, config *rest.Config, manifests []byte) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		var object unstructured.Unstructured
		switch err := documents.Decode(&object); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("policy: manifest: %w", err)
		}
		gvr, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		_, err := client.Resource(gvr).Apply(ctx, object.GetName(), &object, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("policy: the API server does not serve %s of %s; start it with "+
				"--kube-apiserver-arg=feature-gates=MutatingAdmissionPolicy=true --kube-apiserver-arg=runtime-config=%s=true",
				gvr.Resource, gvr.GroupVersion(), gvr.GroupVersion())
		}
		if err != nil {
			return fmt.Errorf("policy: apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}
