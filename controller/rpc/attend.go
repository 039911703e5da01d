package rpc

import (
	"time"

	"google.golang.org/grpc"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
)

// lifePeriod is the time between signs of life.
const lifePeriod = 500 * time.Millisecond

// Attend implements controllerv1.ControllerServiceServer.
func (s *Service) Attend(_ *controllerv1.AttendRequest, stream grpc.ServerStreamingServer[controllerv1.AttendResponse]) error {
	tick := time.NewTicker(lifePeriod)
	defer tick.Stop()
	for {
		act, _ := s.office.Active()
		if err := stream.Send(&controllerv1.AttendResponse{Incarnation: s.office.Incarnation().String(), Active: act != nil}); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.office.Stopping():
			return ErrStopping
		}
	}
}
