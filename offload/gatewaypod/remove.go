package gatewaypod

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func (g *Gateway) selector() string {
	return labels.SelectorFromSet(g.meta("").Labels).String()
}

func (g *Gateway) removeAll(ctx context.Context) error {
	var failed []error
	try := func(what string, err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("gateway: remove %s: %w", what, err))
		}
	}
	all := metav1.ListOptions{LabelSelector: g.selector()}
	background := metav1.DeletePropagationBackground
	gone := metav1.DeleteOptions{PropagationPolicy: &background}
	ns := g.cfg.Namespace
	try("the Deployment", g.campus.AppsV1().Deployments(ns).Delete(ctx, g.name, gone))
	services, err := g.campus.CoreV1().Services(ns).List(ctx, all)
	try("Services", err)
	if err == nil {
		for _, s := range services.Items {
			try("Service "+s.Name, g.campus.CoreV1().Services(ns).Delete(ctx, s.Name, gone))
		}
	}
	policies, err := g.campus.NetworkingV1().NetworkPolicies(ns).List(ctx, all)
	if err == nil { // otherwise there are none
		for _, p := range policies.Items {
			try("NetworkPolicy "+p.Name, g.campus.NetworkingV1().NetworkPolicies(ns).Delete(ctx, p.Name, gone))
		}
	}
	try("the Secret", g.campus.CoreV1().Secrets(ns).Delete(ctx, g.name, gone))
	return errors.Join(failed...)
}
