package k3s

import (
	"context"
	"net/http"
	"strings"

	"github.com/k3s-io/k3s/pkg/version"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	apiapp "k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// APIServer runs the API server until ctx ends. Objects of the cluster may refuse any write, and k3s ends when one of
// its own is refused at a start: a webhook without a server would keep the device down until an operator edits the
// datastore. So own requests are not refused.
func (p *parts) APIServer(ctx context.Context, args []string) error {
	p.start("kube-apiserver", func() error { return p.serve(ctx, args) }, p.ETCDReadyChan())
	return nil
}

func (p *parts) serve(ctx context.Context, args []string) error {
	completed, err := parsed(ctx, "kube-apiserver", args, func(s *options.ServerRunOptions) {
		chain := s.Admission.GenericAdmission
		chain.Decorators = append(chain.Decorators, admission.DecoratorFunc(pastOwn))
	})
	if err != nil {
		return err
	}
	server, docs, err := newServer(ctx, completed, func(*apiapp.Config) {}, func(h http.Handler) http.Handler { return h })
	if err != nil {
		return err
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return err
	}
	go func() {
		p.await(ctx, server.GenericAPIServer.LoopbackClientConfig)
		foreignPolicies(ctx, server.GenericAPIServer.LoopbackClientConfig, docs, true)
	}()
	return prepared.Run(ctx)
}

// pastOwn exempts the engine's own requests from a plugin that follows objects of the cluster.
func pastOwn(plugin admission.Interface, name string) admission.Interface {
	switch name {
	case mutatingwebhook.PluginName, validatingwebhook.PluginName, mutatingpolicy.PluginName, validatingpolicy.PluginName, resourcequota.PluginName:
		return others{plugin}
	}
	return plugin
}

// others is a plugin for all requests except the engine's own.
type others struct{ admission.Interface }

func (o others) Admit(ctx context.Context, a admission.Attributes, i admission.ObjectInterfaces) error {
	if plugin, ok := o.Interface.(admission.MutationInterface); ok && !own(a) {
		return plugin.Admit(ctx, a, i)
	}
	return nil
}

func (o others) Validate(ctx context.Context, a admission.Attributes, i admission.ObjectInterfaces) error {
	if plugin, ok := o.Interface.(admission.ValidationInterface); ok && !own(a) {
		return plugin.Validate(ctx, a, i)
	}
	return nil
}

// own reports whether a request keeps the engine running: objects that the API server and k3s need at each start,
// accounts of controllers, heartbeats of nodes. Objects of users are not among them, also where k3s applies them (the
// folder for manifests).
func own(a admission.Attributes) bool {
	who, what, in := a.GetUserInfo().GetName(), a.GetResource().GroupResource(), a.GetNamespace()
	switch who {
	case user.APIServerUser:
		return true
	case "system:" + version.Program + "-supervisor":
		const group = "k3s.cattle.io"
		return what.Group == group || what.Resource == "customresourcedefinitions" && strings.HasSuffix(a.GetName(), "."+group) ||
			what.Resource == "secrets" && in == metav1.NamespaceSystem && strings.HasSuffix(a.GetName(), ".node-password."+version.Program)
	case user.KubeControllerManager:
		return what.Resource == "serviceaccounts" && in == metav1.NamespaceSystem
	}
	return strings.HasPrefix(who, "system:node:") && what.Resource == "leases" && in == corev1.NamespaceNodeLease
}
