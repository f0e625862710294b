package resourcemetrics

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"rivulet/appliance/addons/nodeservice"
	"rivulet/appliance/health"
	"rivulet/fabric/changes"
)

const (
	namespace    = metav1.NamespaceSystem
	serviceName  = "rivulet-metrics"
	serverName   = serviceName + "." + namespace + ".svc"
	fieldManager = "rivulet"
	apiService   = version + "." + group
	apiServices  = "/apis/apiregistration.k8s.io/v1/apiservices/"
	reader       = "rivulet:metrics-reader"
)

// register registers this server at the API server, unless another program serves the API already.
func (s *Server) register(ctx context.Context, bundle []byte) error {
	if whose, err := s.foreign(ctx); err != nil {
		return err
	} else if whose != "" {
		s.cfg.Health.Set(health.MetricsForeign, "the APIService "+apiService+" leads to "+whose,
			"nothing if that is wanted; else: kubectl delete apiservice "+apiService+", and restart rivulet")
		return nil
	}
	s.cfg.Health.Clear(health.MetricsForeign)
	err := nodeservice.Ensure(ctx, s.client, nodeservice.Service{
		Namespace: namespace, Name: serviceName, Addr: s.cfg.Addr.Addr(),
		Ports: []nodeservice.Port{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, Target: s.cfg.Addr.Port()}},
	})
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	if _, err := s.client.RbacV1().ClusterRoles().Apply(ctx, readerRole(), options); err != nil {
		return fmt.Errorf("metrics: cluster role %s: %w", reader, err)
	}
	body, err := json.Marshal(object(bundle, &apiregistration.ServiceReference{Namespace: namespace, Name: serviceName, Port: new(int32(443))}))
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	err = s.client.Discovery().RESTClient().Patch(types.ApplyYAMLPatchType).AbsPath(apiServices+apiService).
		VersionedParams(&metav1.PatchOptions{FieldManager: fieldManager, Force: &options.Force}, metav1.ParameterCodec).
		Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("metrics: APIService %s: %w", apiService, err)
	}
	return nil
}

// pollAvailable is the interval, at the start, of requests to the API server whether it reaches this server; a watch
// for one such object would not be cheaper.
const pollAvailable = 500 * time.Millisecond

// waitAvailable waits until the API server forwards requests; false if ctx ended.
func (s *Server) waitAvailable(ctx context.Context) bool {
	for {
		if o, err := s.registered(ctx); err == nil && helper.IsAPIServiceConditionTrue(&o, apiregistration.Available) {
			return true
		}
		if !changes.Wait(ctx, pollAvailable) {
			return false
		}
	}
}

func (s *Server) registered(ctx context.Context) (o apiregistration.APIService, err error) {
	raw, err := s.client.Discovery().RESTClient().Get().AbsPath(apiServices+apiService).
		SetHeader("Accept", "application/json").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(raw, &o)
	}
	return o, err
}

// foreign returns the Service that serves the API, if it is not this one.
func (s *Server) foreign(ctx context.Context) (string, error) {
	have, err := s.registered(ctx)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("metrics: APIService %s: %w", apiService, err)
	}
	if at := have.Spec.Service; at != nil && (at.Namespace != namespace || at.Name != serviceName) {
		return "the Service " + at.Namespace + "/" + at.Name, nil
	}
	return "", nil
}

// object is the APIService; at is nil if the API server itself serves the API.
func object(bundle []byte, at *apiregistration.ServiceReference) *apiregistration.APIService {
	return &apiregistration.APIService{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiregistration.SchemeGroupVersion.String(), Kind: "APIService"},
		ObjectMeta: metav1.ObjectMeta{Name: apiService, Labels: map[string]string{"app.kubernetes.io/managed-by": nodeservice.ManagedBy}},
		Spec: apiregistration.APIServiceSpec{Group: group, Version: version, GroupPriorityMinimum: 100, VersionPriority: 100,
			CABundle: bundle, Service: at},
	}
}

// readerRole allows all users with view rights to read resource use.
func readerRole() *rbacv1ac.ClusterRoleApplyConfiguration {
	return rbacv1ac.ClusterRole(reader).
		WithLabels(map[string]string{
			"rbac.authorization.k8s.io/aggregate-to-view":  "true",
			"rbac.authorization.k8s.io/aggregate-to-edit":  "true",
			"rbac.authorization.k8s.io/aggregate-to-admin": "true",
		}).
		WithRules(rbacv1ac.PolicyRule().WithAPIGroups(group).WithResources("pods", "nodes").WithVerbs("get", "list"))
}
