package tenancy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"rivulet/fabric/peer"
)

// kube-proxy has rules on every node for each port of a Service, and a chain with three rules for each address of its
// endpoints with each of their ports; while it writes them, other Services wait, the owner's too. Policies bound one
// object (admission.yaml); here the objects of a consumer are bounded together, before kube-proxy sees them.
const (
	// mostRoutes bounds for one consumer the ports of its Services, and the addresses of its EndpointSlices times their
	// ports. All consumers together may have storeAll times that.
	mostRoutes = 20_000
	// chosenPods is for how many pods a Service with a selector counts in advance: Kubernetes writes their endpoints,
	// as many as there are.
	chosenPods = 100
	// mostPorts and mostEndpoints are the bounds of the policies for one Service and one EndpointSlice.
	mostPorts, mostEndpoints = 32, 1000
)

// newRoutes bounds routes, as newStore bounds bytes.
func newRoutes(count func(context.Context, peer.ID) (int64, error)) *store {
	return &store{bound: mostRoutes, all: storeAll * mostRoutes, count: count, by: map[peer.ID]*holding{}, full: fullError{
		text: "the Services of your cluster have %.0f ports and endpoints here (an endpoint counts once for each of its ports, and a Service of an Ingress or of the LAN for 100), and may have %.0f; " +
			"delete some Services, or have part of them elsewhere: rivulet unoffload NS", unit: 1}}
}

// routes are what an object of a consumer counts for.
func routes(o runtime.Object) int64 {
	switch o := o.(type) {
	case *corev1.Service:
		if len(o.Spec.Selector) > 0 {
			return int64(len(o.Spec.Ports)) * (1 + chosenPods)
		}
		return int64(len(o.Spec.Ports))
	case *discoveryv1.EndpointSlice:
		addresses := 0
		for i := range o.Endpoints {
			addresses += len(o.Endpoints[i].Addresses)
		}
		return int64(addresses) * int64(len(o.Ports))
	}
	return 0
}

// routed are the kinds with routes, and the most that one object of each may have.
var routed = map[schema.GroupResource]struct {
	kind string
	most int64
}{
	{Resource: "services"}: {"Service", mostPorts * (1 + chosenPods)},
	{Group: discoveryv1.GroupName, Resource: "endpointslices"}: {"EndpointSlice", mostEndpoints},
}

// routesIn reads what the written object counts for, and replaces the request's body by what it has read; the result of a
// patch is not known before, and counts as the most. The body is decoded as the API server decodes it, by its
// Content-Type. An error is the client's.
func routesIn(r *http.Request, what *request.RequestInfo) (int64, error) {
	of, is := routed[schema.GroupResource{Group: what.APIGroup, Resource: what.Resource}]
	if !is {
		return 0, nil
	}
	if what.Verb == "patch" {
		return of.most, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, fmt.Errorf("the %s did not arrive: %w; send it again", of.kind, err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	media := r.Header.Get("Content-Type")
	if media == "" {
		media = runtime.ContentTypeJSON
	}
	if media, _, err = mime.ParseMediaType(media); err != nil {
		return 0, fmt.Errorf("the %s has a Content-Type that cannot be read: %w; send application/json", of.kind, err)
	}
	decoder, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), media)
	if !ok {
		return 0, fmt.Errorf("the provider reads no %s of Content-Type %.40q; send application/json", of.kind, media)
	}
	kind := schema.GroupVersionKind{Group: what.APIGroup, Version: what.APIVersion, Kind: of.kind}
	o, found, err := decoder.Serializer.Decode(body, &kind, nil)
	if err == nil && *found != kind {
		err = errors.New("it is another kind")
	}
	if err != nil {
		return 0, fmt.Errorf("the %s cannot be read: %w; send one that kubectl create --dry-run=server takes", of.kind, err)
	}
	return routes(o), nil
}

// countRoutes counts the routes of all of the consumer's twins, and of its virtual clusters'.
func countRoutes(ctx context.Context, t *Tenancy, consumer peer.ID) (sum int64, err error) {
	twins, err := ofAccount(ctx, t, consumer)
	if err != nil {
		return 0, err
	}
	for _, ns := range twins {
		services, err := t.client.CoreV1().Services(ns.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0, fmt.Errorf("tenancy: Services of twin %s: %w", ns.Name, err)
		}
		slices, err := t.client.DiscoveryV1().EndpointSlices(ns.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0, fmt.Errorf("tenancy: endpoints of twin %s: %w", ns.Name, err)
		}
		for i := range services.Items {
			sum += routes(&services.Items[i])
		}
		for i := range slices.Items {
			sum += routes(&slices.Items[i])
		}
	}
	return sum, nil
}
