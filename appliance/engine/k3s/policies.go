package k3s

import (
	"context"
	"sync"
	"time"

	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	k8sscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

// withoutTypeChecks is the flag of a controller manager without the controller that checkTypes runs.
const withoutTypeChecks = "-validatingadmissionpolicy-status-controller"

// notOwn selects the objects that Rivulet did not make.
func notOwn(o *metav1.ListOptions) { o.LabelSelector = "app.kubernetes.io/managed-by!=rivulet" }

// follow calls first once there is an object that Rivulet did not make.
func follow(informer cache.SharedIndexInformer, first func()) {
	once := sync.OnceFunc(first)
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { once() }})
	if err != nil {
		klog.Errorf("policies: %v", err)
	}
}

// foreignPolicies runs what only policies of the cluster's users need, once there is one, until ctx ends: the
// controller that writes type errors into the status of ValidatingAdmissionPolicies, which takes 10 MB, and 50 MB while
// it checks, and for MutatingAdmissionPolicies the documents of custom resources. Rivulet's own are checked by tests, and are about Kubernetes's
// own kinds.
func foreignPolicies(ctx context.Context, cfg *rest.Config, docs *openAPI, mutating bool) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		klog.Errorf("policies: %v", err)
		return
	}
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(notOwn))
	follow(f.Admissionregistration().V1().ValidatingAdmissionPolicies().Informer(), func() {
		docs.need()
		go checkTypes(ctx, client, f)
	})
	if mutating {
		follow(f.Admissionregistration().V1beta1().MutatingAdmissionPolicies().Informer(), docs.need)
	}
	f.Start(ctx.Done())
}

// remap is the interval at which new kinds are read, as in the controller manager.
const remap = 30 * time.Second

// checkTypes is that of Kubernetes's controller manager.
func checkTypes(ctx context.Context, client kubernetes.Interface, f informers.SharedInformerFactory) {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	go wait.UntilWithContext(ctx, func(context.Context) { mapper.Reset() }, remap)
	checker := &validating.TypeChecker{
		SchemaResolver: resolver.NewDefinitionsSchemaResolver(openapi.GetOpenAPIDefinitions, k8sscheme.Scheme, apiextensionsscheme.Scheme).
			Combine(&resolver.ClientDiscoveryResolver{Discovery: client.Discovery()}),
		RestMapper: mapper,
	}
	c, err := validatingadmissionpolicystatus.NewController(f.Admissionregistration().V1().ValidatingAdmissionPolicies(), client.AdmissionregistrationV1().ValidatingAdmissionPolicies(), checker)
	if err != nil {
		klog.Errorf("policies: %v", err)
		return
	}
	c.Run(ctx, 1)
}
