package k3s

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/engine/controlplane"
)

// OwnAPI is an API that a virtual cluster's API server serves itself, beside those of Kubernetes.
type OwnAPI struct {
	GroupVersion schema.GroupVersion
	Resources    []metav1.APIResource
	// Handler serves it; api has all rights at the API server, kubelet is for the kubelet APIs of its nodes.
	Handler func(api *rest.Config, kubelet rest.TLSClientConfig, log *slog.Logger) (http.Handler, error)
	// Register creates the APIService that leads there.
	Register func(ctx context.Context, client kubernetes.Interface) error
}

// kubeletClient has the API server's credentials for the kubelet APIs of its nodes.
var kubeletClient = rest.TLSClientConfig{CAFile: controlplane.TLS + "/kubelet-ca.crt", CertFile: controlplane.TLS + "/kubelet-client.crt", KeyFile: controlplane.TLS + "/kubelet-client.key"}

// serve adds it to the API server behind the aggregator.
func (a OwnAPI) serve(server *aggregator) error {
	kube, ok := server.GenericAPIServer.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return fmt.Errorf("k3s: the API server behind the aggregator is a %T", server.GenericAPIServer.NextDelegate())
	}
	h, err := a.Handler(server.GenericAPIServer.LoopbackClientConfig, kubeletClient, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	kube.Handler.NonGoRestfulMux.HandlePrefix("/apis/"+a.GroupVersion.Group+"/", h)
	found, err := endpoints.ConvertGroupVersionIntoToDiscovery(a.Resources)
	if err != nil {
		return err
	}
	all := kube.AggregatedDiscoveryGroupManager
	all.AddGroupVersion(a.GroupVersion.Group, apidiscovery.APIVersionDiscovery{Version: a.GroupVersion.Version, Resources: found, Freshness: apidiscovery.DiscoveryFreshnessCurrent})
	all.SetGroupVersionPriority(metav1.GroupVersion(a.GroupVersion), 100, 100)
	return nil
}
