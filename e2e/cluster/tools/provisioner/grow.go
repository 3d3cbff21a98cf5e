package main

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// growVolumes does what an external resizer does: it raises the capacity of a volume to what its claim asks for
// and leaves the rest to kubelet, which reports the new size once a pod uses the volume.
func growVolumes(ctx context.Context, client kubernetes.Interface) {
	seen := func(object any) {
		claim := object.(*v1.PersistentVolumeClaim)
		if err := grow(ctx, client, claim); err != nil {
			klog.Errorf("grow the volume of %s/%s: %v", claim.Namespace, claim.Name, err) // tried again at the next resync
		}
	}
	claims := informers.NewSharedInformerFactory(client, 10*time.Second).Core().V1().PersistentVolumeClaims().Informer()
	claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, object any) { seen(object) },
	})
	claims.Run(ctx.Done())
}

func grow(ctx context.Context, client kubernetes.Interface, claim *v1.PersistentVolumeClaim) error {
	wanted := claim.Spec.Resources.Requests.Storage()
	if claim.Status.Phase != v1.ClaimBound || wanted.Cmp(*claim.Status.Capacity.Storage()) <= 0 {
		return nil
	}
	volume, err := client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil || volume.Annotations["pv.kubernetes.io/provisioned-by"] != name || wanted.Cmp(*volume.Spec.Capacity.Storage()) <= 0 {
		return err
	}
	patch := fmt.Sprintf(`{"spec": {"capacity": {"storage": "%s"}}}`, wanted)
	_, err = client.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	patch = `{"status": {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}}`
	_, err = client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}
